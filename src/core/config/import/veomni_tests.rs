//! Configs and commands in the manner of VeOmni's examples, and what comes of them.

use super::tests::{arrived, json_of, missing, settled};
use super::*;
use crate::config::load_text;
use serde_json::json;

const CHAT: &str = "
model:
  model_path: org/text-8B
  ops_implementation: { attn_implementation: flash_attention_2 }
  some_new_key: 7
data:
  train_path: DIR/pairs.json
  data_type: conversation
  chat_template: chatml
  max_seq_len: 4096
  train_size: 100000000
  text_keys: dialogue
train:
  accelerator:
    fsdp_config: { fsdp_mode: fsdp2, mixed_precision: { enable: true } }
    offload: { enable_activation: false }
  gradient_checkpointing: { enable: true, enable_reentrant: false }
  global_batch_size: 64
  micro_batch_size: 2
  bsz_warmup_ratio: 0.01
  optimizer: { type: adamw, lr: 1.0e-4, lr_decay_style: cosine, lr_warmup_ratio: 0.02 }
  num_train_epochs: 3
  init_device: meta
  checkpoint: { output_dir: out/chat, manager: dcp, save_steps: 100, save_epochs: 1 }
  wandb: { enable: true, project: p, name: n }
";

/// A config with the names of the first versions.
const OLD: &str = "
model: { model_path: org/text-1B, attn_implementation: sdpa }
data: { train_path: texts, data_type: plaintext, max_seq_len: 1024, train_size: 1048576, num_workers: 4 }
train:
  output_dir: out/texts
  lr: 1.0e-3
  data_parallel_mode: fsdp1
  enable_full_shard: false
  expert_parallel_size: 2
  enable_gradient_checkpointing: false
  rmpad: false
  rmpad_with_pos_ids: true
  micro_batch_size: 2
  ckpt_manager: dcp
  save_steps: 10
  use_wandb: true
  wandb_project: p
";

/// Returns a config of these keys of `model`, `data` and `train`.
fn of(model: &str, data: &str, train: &str) -> Imported {
    let model = format!("model: {{ model_path: org/a, {model} }}\n");
    let data = format!("data: {{ train_path: a.jsonl, {data} }}\n");
    import(&format!("{model}{data}train: {{ seed: 1, {train} }}\n")).unwrap()
}

#[test]
fn a_config_of_veomni_arrives() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("pairs.json"), "[]").unwrap();
    let imported = import(&CHAT.replace("DIR", &dir.path().display().to_string())).unwrap();
    let config = load_text(&imported.yaml).unwrap_or_else(|report| panic!("{}\n{report}", imported.yaml)).config;
    let (train, data) = (&config.train, &config.data);
    assert_eq!((imported.from, config.run.name.as_str(), config.run.seed), ("VeOmni", "n", 42));
    // 100.5 million tokens in steps of 64 packs, three times.
    assert_eq!((train.steps, train.global_batch_size, data.pack.max_tokens), (Some(3 * 384), 64, 4096));
    assert_eq!((train.lr, train.min_lr, train.warmup_ratio, train.clip_grad), (1e-4, 1e-7, Some(0.02), 1.0));
    assert_eq!((train.optimizer.weight_decay, train.optimizer.betas), (0.0, [0.9, 0.95]));
    assert_eq!((config.checkpoint.every_steps, config.pools.foundation.zero), (100, 3));
    let found = json_of(&imported);
    assert_eq!(found["data"]["train"][0]["columns"], json!({ "messages": "dialogue" }));
    assert_eq!((&found["data"]["template"], &found["data"]["pack"]["mode"]), (&json!("chatml"), &json!("stream")));
    assert_eq!(
        (&found["model"]["foundation"]["recompute"], &found["train"]["schedule"], &found["log"]["wandb"]["project"]),
        (&json!("all"), &json!("cosine"), &json!("p"))
    );
    assert_eq!(missing(&imported), ["model.some_new_key", "train.bsz_warmup_ratio", "train.checkpoint.save_epochs"]);
    assert!(settled(&imported).contains(&"train.accelerator.offload.enable_activation"), "{:?}", imported.keys);
}

#[test]
fn options_replace_keys_of_the_config_that_a_command_names() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("old.yaml").display().to_string();
    std::fs::write(&config, OLD).unwrap();
    let options = "--train.lr 2e-5 --train.ulysses_parallel_size 2 --data.text_keys text --train.some 1";
    let line = format!("torchrun --nnodes=1 --nproc-per-node 8 tasks/train_torch.py {config} {options}\n");
    let imported = import(&line).unwrap();
    let found = json_of(&imported);
    let (train, pool) = (&found["train"], &found["pools"]["foundation"]);
    // Two of each of four devices that do not share a row; 8,192 tokens a step.
    assert_eq!((&train["global_batch_size"], &train["steps"]), (&json!(8), &json!(128)));
    assert_eq!((train["lr"].as_f64(), &train["phase"]), (Some(2e-5), &json!("pretrain")));
    let layout = json!({
        "replicas": 4, "zero": 2, "context_parallel": 2, "context_attention": "ulysses", "expert_parallel": 2
    });
    assert_eq!(pool, &layout);
    assert_eq!(found["data"]["train"], json!([{ "path": "texts" }]));
    assert_eq!((&found["model"]["foundation"], &found["checkpoint"]["every_steps"]), (&Value::Null, &json!(10)));
    assert_eq!(found["log"]["wandb"], json!({ "project": "p" }));
    assert_eq!(missing(&imported), ["--train.some"]);
    assert!(settled(&imported).contains(&config.as_str()), "{:?}", imported.keys);
    let arrived = arrived(&imported);
    for key in ["--train.lr", "--nproc-per-node", "train.output_dir", "train.data_parallel_mode", "train.use_wandb"] {
        assert!(arrived.contains(&key), "{key}: {arrived:?}");
    }
    // Each key once: the one that is replaced is not told.
    assert!(!imported.keys.iter().any(|key| key.key == "train.lr"));
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    assert_eq!(import_words(&words).unwrap().yaml, imported.yaml);
}

#[test]
fn a_config_that_is_not_here_is_told() {
    let line = "bash train.sh tasks/train_text.py none/here.yaml --model.model_path org/a --train.optimizer.lr 1e-5\n";
    let imported = import(line).unwrap();
    assert_eq!((imported.from, missing(&imported)), ("VeOmni", vec!["none/here.yaml"]));
    assert_eq!(json_of(&imported)["train"]["lr"].as_f64(), Some(1e-5));
}

#[test]
fn a_run_without_dynamic_batches_counts_epochs() {
    let run = |train: &str| json_of(&of("", "train_size: 4096, max_seq_len: 1024", train));
    let padded = run("dyn_bsz: false, global_batch_size: 4, num_train_epochs: 2");
    assert_eq!((padded["train"]["epochs"].as_f64(), &padded["train"]["steps"]), (Some(2.0), &Value::Null));
    assert_eq!(padded["data"]["pack"]["mode"], Value::Null);
    let bounded = run("dyn_bsz: false, global_batch_size: 4, num_train_epochs: 2, max_steps: 5");
    assert_eq!(bounded["train"]["steps"], json!(10));
    // max_steps bounds an epoch that is longer, and lengthens none.
    for (limit, steps) in [(3, 3), (9, 4)] {
        let dynamic = run(&format!("global_batch_size: 1, max_steps: {limit}"));
        assert_eq!(dynamic["train"]["steps"], json!(steps), "{limit}");
    }
    let saved = |keys: &str| run(&format!("global_batch_size: 1, checkpoint: {{ {keys} }}"))["checkpoint"].clone();
    assert_eq!(saved("hf_save_steps: 2"), json!({ "every_steps": 2 }));
    assert_eq!(saved("hf_save_steps: 2, save_steps: 3"), json!({ "every_steps": 3 }));
    assert_eq!(saved("hf_save_steps: 2, save_hf_weights: false"), json!({ "every_steps": 0 }));
    // Without steps of its own a run saves at the end of each epoch.
    assert_eq!(run("global_batch_size: 1, num_train_epochs: 2")["checkpoint"]["every_steps"], json!(4));
}

#[test]
fn adapters_and_towers_arrive() {
    let limits = "image_max_pixels: 9, video_max_pixels: 8, video_total_pixels: 7";
    let media = &format!("chat_template: qwen3vl, mm_configs: {{ {limits} }}");
    let lora = "lora_config: { rank: 16, alpha: 32, lora_modules: [q_proj], bias: none, share_expert_lora: false }";
    let adapted = of(lora, media, "");
    let found = json_of(&adapted);
    let lora = &found["model"]["foundation"]["lora"];
    assert_eq!((&lora["r"], lora["alpha"].as_f64()), (&json!(16), Some(32.0)));
    assert_eq!((&lora["target_modules"], &found["pools"]["encoder"]), (&json!(["q_proj"]), &Value::Null));
    let frozen = ["image_encoder", "image_projector"].map(|part| found["model"][part]["freeze"].as_bool());
    assert_eq!(frozen, [Some(true), Some(true)]);
    let limits = ["image", "video"].map(|kind| found["data"][kind]["max_pixels"].as_u64());
    assert_eq!(limits, [Some(9), Some(7)]);
    assert_eq!(missing(&adapted), ["data.mm_configs.video_max_pixels"]);
    // The image tower has a rate of its own by default.
    let rate = |train: &str| json_of(&of("", media, train))["pools"]["encoder"]["lr"].as_f64();
    assert_eq!((rate(""), rate("vit_lr: 2.0e-6"), rate("freeze_vit: true")), (Some(1e-6), Some(2e-6), None));
    // The name of a folder above the model says nothing of it.
    let text = import("model: { model_path: /VeOmni/vl/text-8B }\ntrain: { seed: 1 }\n").unwrap();
    assert_eq!(json_of(&text)["pools"]["encoder"], Value::Null);
    let experts = of("lora_config: { target_parameters: [experts.down_proj] }", "", "");
    let lora = &json_of(&experts)["model"]["foundation"]["lora"];
    assert_eq!((&lora["r"], &lora["target_modules"]), (&json!(8), &json!([])));
}

#[test]
fn pairs_sources_and_muon_arrive() {
    let pairs = "data_type: dpo }\ndpo_config: { beta: 0.2, loss_type: ipo, label_smoothing: 0.1, reference_free: true";
    let pairs = of("", pairs, "");
    assert_eq!(json_of(&pairs)["train"]["preference"], json!({ "loss": "ipo", "beta": 0.2 }));
    assert_eq!(missing(&pairs), ["dpo_config.reference_free"]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sources.yaml");
    let sources = "sources: [a, b]\nschedule: [{ schedule_type: const, weights: [0.25, 0.75] }]\n";
    std::fs::write(&file, sources).unwrap();
    let of_path = |path: &str| {
        let imported = import(&format!("data: {{ train_path: \"{path}\" }}\ntrain: {{ seed: 1 }}\n")).unwrap();
        (json_of(&imported)["data"]["train"].clone(), missing(&imported).contains(&"data.train_path"))
    };
    let mixed = json!([{ "path": "a", "weight": 0.25 }, { "path": "b", "weight": 0.75 }]);
    assert_eq!(of_path(&file.display().to_string()), (mixed, false));
    assert_eq!(of_path("a.parquet, b.parquet"), (json!([{ "path": ["a.parquet", "b.parquet"] }]), false));
    for path in ["none/here.yaml", "hdfs://host/a"] {
        assert_eq!(of_path(path), (Value::Null, true), "{path}");
    }
    let decays = |train: &str| of("", "", train).notes.iter().any(|note| note.contains("norms and biases"));
    assert!(decays("optimizer: { weight_decay: 0.1 }") && !decays(""));
    let muon = of("", "", "optimizer: { type: muon, lr: 2.0e-4, muon_lr: 1.0e-3, muon_nesterov: false }");
    let optimizer = &json_of(&muon)["train"]["optimizer"];
    assert_eq!((&optimizer["type"], optimizer["muon"]["lr_ratio"].as_f64()), (&json!("muon"), Some(5.0)));
    assert_eq!(missing(&muon), ["train.optimizer.muon_nesterov"]);
    let original = json_of(&of("", "", "optimizer: { type: muon, muon_adjust_lr_fn: original }"));
    assert_eq!(original["train"]["optimizer"]["muon"]["lr_ratio"].as_f64(), Some(25.0));
}

#[test]
fn runs_without_a_counterpart_are_refused_by_name() {
    let config = "model: { model_path: a, MODEL }\ndata: { train_path: b, DATA }\ntrain: { seed: 1 }\n";
    let of = |model: &str, data: &str| config.replace("MODEL", model).replace("DATA", data);
    for (text, part) in [
        (of("", "data_type: diffusion"), "data_type `diffusion`"),
        (of("encoders: { image: { model_path: x } }", ""), "`model.encoders.image.model_path`"),
        (of("condition_model_path: x", ""), "`model.condition_model_path`"),
        ("bash train.sh tasks/train_dit.py x.yaml".to_owned(), "task `train_dit`"),
        ("bash train.sh tasks/train_text_rl.py x.yaml --train.seed 1".to_owned(), "task `train_text_rl`"),
    ] {
        let error = import(&text).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("only language and vision-language models"), "{error}");
    }
}
