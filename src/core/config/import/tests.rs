//! Configs in the manner of those trainers' examples, and what comes of them.

use super::*;
use crate::config::load_text;
use serde_json::json;

const LLAMA_FACTORY: &str = "
model_name_or_path: org/model-8B
trust_remote_code: true
stage: dpo
do_train: true
finetuning_type: lora
lora_rank: 16
lora_target: all
pref_beta: 0.2
pref_loss: ipo
dataset: pairs
dataset_dir: DIR
template: llama3
cutoff_len: 2048
max_samples: 1000
preprocessing_num_workers: 16
output_dir: saves/llama3-8b/lora/dpo
logging_steps: 10
save_steps: 500
plot_loss: true
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 5.0e-6
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
deepspeed: examples/deepspeed/ds_z3_config.json
quantization_bit: 3
neftune_noise_alpha: 0
some_new_key: 7
";

const AXOLOTL: &str = "
base_model: org/model-1B
datasets:
  - path: org/alpaca
    type: alpaca
  - path: DIR/pairs.json
    type: chat_template
    field_messages: conversation
val_set_size: 0.1
output_dir: ./outputs/lora-out
adapter: lora
lora_r: 16
lora_alpha: 32
lora_target_modules: [q_proj, v_proj]
sequence_len: 2048
sample_packing: true
gradient_accumulation_steps: 2
micro_batch_size: 4
num_epochs: 1
optimizer: adamw_8bit
lr_scheduler: cosine
learning_rate: 2e-4
bf16: auto
tf32: false
gradient_checkpointing: true
resume_from_checkpoint:
logging_steps: 1
flash_attention: true
warmup_ratio: 0.1
evals_per_epoch: 4
weight_decay: 0.0
wandb_project:
special_tokens: { pad_token: x }
";

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("pairs.json"), "[]").unwrap();
    dir
}

fn fates(imported: &Imported, is: impl Fn(&Fate) -> bool) -> Vec<&str> {
    imported.keys.iter().filter(|key| is(&key.fate)).map(|key| key.key.as_str()).collect()
}

pub(super) fn missing(imported: &Imported) -> Vec<&str> {
    fates(imported, |fate| matches!(fate, Fate::Missing(_)))
}

pub(super) fn settled(imported: &Imported) -> Vec<&str> {
    fates(imported, |fate| matches!(fate, Fate::Settled(_)))
}

pub(super) fn json_of(imported: &Imported) -> Value {
    yaml::parse(&imported.yaml, 0, 0).unwrap().to_json()
}

pub(super) fn arrived(imported: &Imported) -> Vec<&str> {
    fates(imported, |fate| matches!(fate, Fate::Arrived(_)))
}

#[test]
fn llama_factorys_keys_arrive_and_the_others_are_named() {
    let dir = folder();
    let text = LLAMA_FACTORY.replace("DIR", &dir.path().display().to_string());
    let imported = import(&text).unwrap();
    assert_eq!((imported.from, imported.keys.len()), ("LLaMA-Factory", text.lines().count() - 1));
    let config = load_text(&imported.yaml).unwrap_or_else(|report| panic!("{}\n{report}", imported.yaml)).config;
    let lora = config.model.foundation.lora.unwrap();
    assert_eq!((lora.r, lora.alpha), (Some(16), Some(32.0)), "their alpha is twice the rank");
    let preference = config.train.preference.unwrap();
    assert_eq!((preference.beta, format!("{:?}", preference.loss)), (Some(0.2), "Ipo".to_owned()));
    assert_eq!((config.train.global_batch_size, config.train.lr, config.train.epochs), (8, 5e-6, Some(3.0)));
    assert_eq!(
        (config.run.name.as_str(), config.pools.foundation.zero, config.train.warmup_ratio),
        ("dpo", 3, Some(0.1))
    );
    assert_eq!(fates(&imported, |fate| matches!(fate, Fate::Missing(_))), ["quantization_bit", "some_new_key"]);
    assert_eq!(config.data.train[0].max_samples, Some(1000));
    let settled = fates(&imported, |fate| matches!(fate, Fate::Settled(_)));
    assert!(settled.contains(&"plot_loss") && settled.contains(&"trust_remote_code"), "{settled:?}");
}

#[test]
fn runs_of_wandb_and_mlflow_arrive() {
    let dir = folder();
    let theirs = LLAMA_FACTORY.replace("DIR", &dir.path().display().to_string()) + "report_to: wandb\n";
    let config = load_text(&import(&theirs).unwrap().yaml).unwrap().config;
    assert_eq!(config.log.wandb.unwrap().project, "loongforge");
    let names = "wandb_project: p\nwandb_entity: e\nwandb_name: n\nmlflow_experiment_name: m\n";
    let theirs = AXOLOTL.replace("DIR", &dir.path().display().to_string()).replace("wandb_project:\n", names);
    let log = load_text(&import(&theirs).unwrap().yaml).unwrap().config.log;
    let (wandb, mlflow) = (log.wandb.unwrap(), log.mlflow.unwrap());
    assert_eq!((wandb.project.as_str(), wandb.entity.as_deref(), wandb.name.as_deref()), ("p", Some("e"), Some("n")));
    assert_eq!(mlflow.experiment, "m");
}

#[test]
fn axolotls_keys_arrive_and_the_others_are_named() {
    let dir = folder();
    let imported = import(&AXOLOTL.replace("DIR", &dir.path().display().to_string())).unwrap();
    assert_eq!(imported.from, "axolotl");
    let node = json_of(&imported);
    let sets = &node["data"]["train"];
    assert_eq!(
        (&sets[0]["path"], &sets[1]["columns"]),
        (&json!("hf://datasets/org/alpaca"), &json!({"messages": "conversation"}))
    );
    assert_eq!((&node["train"]["global_batch_size"], &node["train"]["lr"]), (&json!(8), &json!(2e-4)));
    assert_eq!((&node["train"]["precision"], &node["run"]["name"]), (&json!("bf16"), &json!("lora-out")));
    assert_eq!(
        node["model"]["foundation"]["lora"],
        json!({"r": 16, "alpha": 32, "target_modules": ["q_proj", "v_proj"]})
    );
    assert_eq!((missing(&imported), &node["eval"]), (vec![], &json!({ "every_epochs": 0.25 })));
    assert_eq!(node["train"]["optimizer"]["type"], json!("adamw_8bit"));
}

#[test]
fn when_a_trainer_saves_arrives_or_is_named() {
    for of in ["model_name_or_path: a/b\n", "base_model: a/b\n"] {
        for (text, every, missing) in [
            ("save_steps: 50\n", json!(50), ""),
            ("save_steps: 50\nsave_strategy: steps\n", json!(50), ""),
            ("save_steps: 50\nsave_strategy: 'no'\n", json!(null), ""),
            ("save_steps: 50\nsave_strategy: epoch\n", json!(null), ""),
            ("save_steps: 50\nsave_strategy: epoch\nmax_steps: 9\n", json!(null), "save_strategy"),
            ("save_strategy: best\n", json!(null), "save_strategy"),
        ] {
            let imported = import(&format!("{of}{text}")).unwrap();
            let node = json_of(&imported);
            let found = (&node["checkpoint"]["every_steps"], super::tests::missing(&imported).join(" "));
            assert_eq!(found, (&every, missing.to_owned()), "{of}{text}");
        }
    }
}

/// Returns the precision of frozen weights in an imported config, and the keys that have no counterpart.
fn frozen(text: &str) -> (Value, Vec<String>) {
    let imported = import(text).unwrap();
    let node = json_of(&imported);
    let missing = fates(&imported, |fate| matches!(fate, Fate::Missing(_))).into_iter().map(str::to_owned).collect();
    (node["model"]["foundation"]["frozen_precision"].clone(), missing)
}

#[test]
fn weights_of_few_bits_arrive() {
    for (text, precision, missing) in [
        ("quantization_bit: 4\n", json!("nf4_double"), &[][..]),
        ("quantization_bit: 4\ndouble_quantization: false\nquantization_method: bnb\n", json!("nf4"), &[]),
        ("quantization_bit: 8\nquantization_method: bitsandbytes\n", json!("int8"), &[]),
        ("quantization_bit: 4\nquantization_type: fp4\n", json!(null), &["quantization_bit", "quantization_type"]),
        ("quantization_bit: 2\nquantization_method: hqq\n", json!(null), &["quantization_bit", "quantization_method"]),
        ("double_quantization: true\n", json!(null), &[]),
    ] {
        let found = frozen(&format!("model_name_or_path: a/b\n{text}"));
        assert_eq!(found, (precision, missing.iter().map(|key| key.to_string()).collect()), "{text}");
    }
    let plain = "bnb_config_kwargs: {bnb_4bit_use_double_quant: false}\n";
    let fp4 = "bnb_config_kwargs: {bnb_4bit_quant_type: fp4}\n";
    for (text, precision, missing) in [
        ("adapter: qlora\nload_in_4bit: true\n".to_owned(), json!("nf4_double"), &[][..]),
        ("adapter: qlora\n".to_owned(), json!("nf4_double"), &[]),
        (format!("adapter: lora\nload_in_4bit: true\n{plain}"), json!("nf4"), &[]),
        ("adapter: lora\nload_in_8bit: true\nload_in_4bit: false\n".to_owned(), json!("int8"), &[]),
        (format!("load_in_4bit: true\n{fp4}"), json!(null), &["bnb_config_kwargs", "load_in_4bit"]),
        ("gptq: true\n".to_owned(), json!(null), &["gptq"]),
    ] {
        let found = frozen(&format!("base_model: a/b\n{text}"));
        assert_eq!(found, (precision, missing.iter().map(|key| key.to_string()).collect()), "{text}");
    }
}

#[test]
fn optimizers_arrive() {
    let theirs = |text: &str| {
        let imported = import(text).unwrap();
        let node = json_of(&imported);
        (
            node["train"]["optimizer"]["type"].clone(),
            fates(&imported, |fate| matches!(fate, Fate::Missing(_))).join(" "),
        )
    };
    for (text, kind, missing) in [
        ("model_name_or_path: a/b\noptim: adamw_bnb_8bit\n", json!("adamw_8bit"), ""),
        ("model_name_or_path: a/b\noptim: adamw_torch_fused\nuse_muon: true\n", json!("muon"), ""),
        ("model_name_or_path: a/b\noptim: adafactor\nuse_muon: false\n", json!(null), "optim"),
        ("base_model: a/b\noptimizer: muon\n", json!("muon"), ""),
        ("base_model: a/b\noptimizer: paged_adamw_8bit\n", json!("adamw_8bit"), ""),
        ("base_model: a/b\noptimizer: lion_8bit\n", json!(null), "optimizer"),
    ] {
        assert_eq!(theirs(text), (kind, missing.to_owned()), "{text}");
    }
}

/// The keys are transformers' of label smoothing and NEFTune, and PEFT's of LoRA+.
#[test]
fn methods_of_training_arrive_from_both() {
    let methods =
        "label_smoothing_factor: 0.1\nneftune_noise_alpha: 5\nloraplus_lr_ratio: 16.0\nloraplus_lr_embedding: 1e-6\n";
    let dir = folder();
    let groups = "lr_groups:\n  - {name: attention, modules: [o_proj, q_proj], lr: 1e-5}\n";
    let axolotl = AXOLOTL.replace("DIR", &dir.path().display().to_string());
    let imported = import(&format!("{axolotl}{groups}")).unwrap();
    let ratios = load_text(&imported.yaml).unwrap().config.model.foundation.lr_ratios;
    let rate = load_text(&imported.yaml).unwrap().config.train.lr;
    assert_eq!(json!(ratios), json!({ "*o_proj*": 1e-5 / rate, "*q_proj*": 1e-5 / rate }));
    let sft = LLAMA_FACTORY.replace("DIR", &dir.path().display().to_string()).replace("stage: dpo", "stage: sft");
    let sft = sft.replace("neftune_noise_alpha: 0\n", "").replace("pref_beta: 0.2\npref_loss: ipo\n", "");
    for text in [sft, AXOLOTL.replace("DIR", &dir.path().display().to_string())] {
        let imported = import(&format!("{text}{methods}")).unwrap();
        let node = json_of(&imported);
        assert_eq!((&node["train"]["label_smoothing"], &node["train"]["neftune_alpha"]), (&json!(0.1), &json!(5)));
        assert_eq!(node["model"]["foundation"]["lora"]["loraplus_lr_ratio"], json!(16.0));
        let settled = fates(&imported, |fate| matches!(fate, Fate::Settled(_)));
        assert!(settled.contains(&"loraplus_lr_embedding"), "{settled:?}");
    }
}

#[test]
fn a_devices_batch_is_a_group_of_labeled_answers() {
    let dir = folder();
    let text = LLAMA_FACTORY.replace("DIR", &dir.path().display().to_string());
    let text = text.replace("stage: dpo", "stage: kto\nkto_chosen_weight: 1.5").replace("pref_loss: ipo\n", "");
    let text = text.replace("per_device_train_batch_size: 1\n", "per_device_train_batch_size: 6\n");
    let imported = import(&text).unwrap();
    let config = load_text(&imported.yaml).unwrap_or_else(|report| panic!("{}\n{report}", imported.yaml)).config;
    let preference = config.train.preference.unwrap();
    assert_eq!((format!("{:?}", preference.loss), preference.num_grouped()), ("Kto".to_owned(), 6));
    assert_eq!((preference.beta, preference.desirable_weight), (Some(0.2), Some(1.5)));
    assert_eq!(config.train.global_batch_size, 8, "groups that are accumulated");
    let text = AXOLOTL.replace("DIR", &dir.path().display().to_string());
    let imported = import(&format!("{text}rl: kto\nkto_undesirable_weight: 0.2\n")).unwrap();
    let node = json_of(&imported);
    assert_eq!(node["train"]["preference"], json!({"loss": "kto", "undesirable_weight": 0.2, "group_size": 4}));
}

/// The end of a schedule goes by the run's own rate, and the methods that are not there are refused rather than replaced.
#[test]
fn options_of_schedules_arrive_and_other_stages_are_refused() {
    let min_lr = |text: &str| {
        let imported = import(text).unwrap();
        let node = json_of(&imported);
        node["train"]["min_lr"].as_f64()
    };
    let factory = "model_name_or_path: a/b\nstage: sft\nlearning_rate: 2.0e-4\n";
    let trl = "model_name_or_path: a/b\ndataset_name: x/y\nlearning_rate: 2.0e-4\n";
    for (text, expected) in [
        (format!("{factory}lr_scheduler_kwargs: {{ min_lr: 1.0e-6 }}\n"), Some(1e-6)),
        (format!("{factory}lr_scheduler_kwargs: {{ min_lr: 1e-6 }}\n"), Some(1e-6)),
        (format!("{factory}lr_scheduler_kwargs: '{{\"min_lr_rate\": 0.5}}'\n"), Some(1e-4)),
        (format!("{trl}lr_scheduler_kwargs: {{ min_lr_rate: 0.5 }}\n"), Some(1e-4)),
        (format!("{trl}lr_scheduler_kwargs: {{ min_lr_rate: 0.5, num_cycles: 0.5 }}\n"), Some(1e-4)),
        (format!("{trl}lr_scheduler_kwargs: {{ min_lr_rate: 0.5, num_cycles: 2 }}\n"), None),
        (format!("{trl}lr_scheduler_kwargs: {{ num_cycles: 2 }}\n"), None),
    ] {
        assert_eq!(min_lr(&text), expected, "{text}");
    }
    for stage in ["ppo", "rm"] {
        let error = import(&format!("model_name_or_path: a/b\nstage: {stage}\n")).unwrap_err().to_string();
        assert!(error.contains(&format!("`{stage}` has no counterpart")), "{error}");
    }
    let quantized = |more: &str| {
        let imported = import(&format!("{trl}use_peft: true\n{more}")).unwrap();
        let node = json_of(&imported);
        node["model"]["foundation"]["frozen_precision"].clone()
    };
    assert_eq!(quantized("load_in_4bit: true\n"), json!("nf4"));
    assert_eq!(quantized("load_in_4bit: true\nuse_bnb_nested_quant: true\n"), json!("nf4_double"));
    assert_eq!(quantized("load_in_8bit: true\n"), json!("int8"));
    assert_eq!(quantized("load_in_4bit: true\nbnb_4bit_quant_type: fp4\n"), json!(null));
}

#[test]
fn what_is_no_number_is_not_taken_for_the_default() {
    let keys = ["lora_rank", "lora_alpha", "gradient_accumulation_steps", "per_device_train_batch_size"];
    let text: String = keys.iter().map(|key| format!("{key}: auto\n")).collect();
    let imported = import(&format!("model_name_or_path: a/b\nstage: sft\n{text}")).unwrap();
    keys.iter().for_each(|key| assert!(missing(&imported).contains(key), "{key}"));
    let imported = import("model_name_or_path: a/b\nstage: sft\nlora_rank: \"4\"\n").unwrap();
    assert!(arrived(&imported).contains(&"lora_rank") && imported.yaml.contains("r: 4"), "{}", imported.yaml);
}

/// Other trainers read YAML 1.1, in which `yes` is a truth value.
#[test]
fn switches_in_words_are_read() {
    let of = |lines: &str| import(&format!("model_name_or_path: a/b\nstage: sft\n{lines}")).unwrap();
    for word in ["yes", "Yes", "on", "\"true\""] {
        assert!(of(&format!("bf16: {word}\n")).yaml.contains("precision: bf16"), "{word}");
    }
    assert!(!of("bf16: no\n").yaml.contains("bf16"));
    let node = json_of(&of("run_name: on\n"));
    assert_eq!(node["run"]["name"], "on");
}

#[test]
fn strategies_that_count_no_steps_are_named() {
    let of = |lines: &str| import(&format!("model_name_or_path: a/b\nstage: sft\n{lines}save_steps: 50\n")).unwrap();
    for strategy in ["epoch", "no", "\"no\""] {
        let imported = of(&format!("save_strategy: {strategy}\n"));
        assert!(!missing(&imported).contains(&"save_strategy"), "{strategy}");
        assert_eq!(imported.yaml.contains("every_epochs: 1"), strategy == "epoch", "{strategy}");
        assert!(settled(&imported).contains(&"save_steps") && !imported.yaml.contains("every_steps: 50"), "{strategy}");
    }
    let imported = of("save_strategy: steps\n");
    assert!(settled(&imported).contains(&"save_strategy") && imported.yaml.contains("every_steps: 50"));
}

#[test]
fn what_is_of_nobody_is_refused() {
    for (text, part) in [("a: [", "not valid YAML"), ("model: x\nlr: 1\n", "lr, model"), ("3\n", "none")] {
        let error = import(text).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let toml = import("[general]\nenable_bucket = true\n\n[[datasets]]\nsteps = 10\n").unwrap_err().to_string();
    assert!(toml.contains("import the command that trains"), "{toml}");
    let toml = import("[general]\nenable_bucket = true\n\n[[datasets]\n").unwrap_err().to_string();
    assert!(toml.contains("not valid TOML: line 4"), "{toml}");
    let toml = import("[general]\nenable_bucket = true\n").unwrap_err().to_string();
    assert!(toml.contains("of TOML files only torchtitan's are translated"), "{toml}");
    let own = import("run: { name: a }\nmodel: { load: a/b }\ntrain: { lr: 1 }\n").unwrap_err().to_string();
    assert!(own.contains("a config of this program already"), "{own}");
    // The rule about a space behind a colon is for our own keys.
    import("model_name_or_path: a/b\n\"a:b\":\n").unwrap();
    let error = import("model: x\n").unwrap_err().to_string();
    assert!(error.contains("base_model") && error.contains("model_name_or_path"), "{error}");
}

/// Returns the stage of ZeRO and the offload of the optimizer's state that come of DeepSpeed's config under `deepspeed: VALUE`, and what
/// has no counterpart.
fn deepspeed(value: &str) -> (Value, Value, Vec<String>) {
    let imported = import(&format!("model_name_or_path: a/b\ndeepspeed: {value}\n")).unwrap();
    let node = json_of(&imported);
    let missing = fates(&imported, |fate| matches!(fate, Fate::Missing(_))).into_iter().map(str::to_owned).collect();
    (node["pools"]["foundation"]["zero"].clone(), node["train"]["optimizer"]["offload"].clone(), missing)
}

#[test]
fn deepspeeds_stage_and_offload_arrive() {
    let dir = folder();
    let file = |name: &str, section: Value| {
        let path = dir.path().join(name);
        std::fs::write(&path, json!({ "zero_optimization": section, "bf16": { "enabled": "auto" } }).to_string())
            .unwrap();
        path.display().to_string()
    };
    let cpu = json!({ "to": "cpu" });
    let nvme = json!({"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/local", "pin_memory": true, "ratio": 0.5}});
    let both = json!({"stage": 2, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "none"}});
    let none = json!({"stage": 1, "offload_optimizer": {"device": "none"}});
    for (value, zero, offload) in [
        // The files that are here say more than their names.
        (file("ds_z0.json", nvme), json!(3), json!({"to": "disk", "path": "/local", "fraction": 0.5})),
        (file("b.json", both), json!(2), cpu.clone()),
        (file("c_offload.json", none), json!(1), Value::Null),
        ("examples/deepspeed/ds_z3_offload_config.json".into(), json!(3), cpu.clone()),
        ("deepspeed_configs/zero3_bf16_cpuoffload_params.json".into(), json!(3), Value::Null),
        ("deepspeed_configs/zero2.json".into(), json!(2), Value::Null),
        ("zero0_offload/ds_z2_to_z3.json".into(), json!(3), Value::Null),
        ("{zero_optimization: {stage: 2, cpu_offload: true}}".into(), json!(2), cpu.clone()),
        ("{zero_optimization: {stage: 3, offload_optimizer: {device: cpu, ratio: 0}}}".into(), json!(3), Value::Null),
        ("{zero_optimization: {stage: 2, offload_optimizer: {device: cpu}}}".into(), json!(2), cpu.clone()),
    ] {
        assert_eq!(deepspeed(&value), (zero, offload, vec![]), "{value}");
    }
    assert_eq!(deepspeed("mine.json"), (Value::Null, Value::Null, vec!["deepspeed".to_owned()]));
}

/// They train two layers, or those that are named; never all.
#[test]
fn llama_factorys_freeze_trains_what_it_trains_there() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), r#"{"num_hidden_layers": 6}"#).unwrap();
    let model = dir.path().display().to_string();
    let patterns = |model: &str, more: &str| {
        let text = format!("model_name_or_path: {model}\nstage: sft\nfinetuning_type: freeze\ndataset: a\n{more}");
        let imported = import(&text).unwrap();
        assert_eq!(missing(&imported), [""; 0], "{more}");
        let node = json_of(&imported);
        let foundation = &node["model"]["foundation"];
        assert_eq!((&foundation["freeze"], &foundation["lora"]), (&json!(true), &json!(null)), "{more}");
        foundation["train_patterns"].clone()
    };
    assert_eq!(patterns(&model, ""), json!(["*layers.4.*", "*layers.5.*"]));
    let named = "freeze_trainable_layers: 1\nfreeze_trainable_modules: mlp,self_attn\nfreeze_extra_modules: embed_tokens, norm\n";
    let expected = ["*layers.5.mlp*", "*layers.5.self_attn*", "*embed_tokens*", "*norm*"];
    assert_eq!(patterns(&model, named), json!(expected));
    assert_eq!(patterns(&model, "freeze_trainable_layers: 9\n").as_array().unwrap().len(), 6);
    let first = "freeze_trainable_layers: -2\n";
    assert_eq!(patterns("org/unknown-8B", first), json!(["*layers.0.*", "*layers.1.*"]));
    // Of a model that is not here the number of layers is not known, and nothing matches these.
    assert_eq!(patterns("org/unknown-8B", ""), json!(["*layers.LAST-1.*", "*layers.LAST-2.*"]));
}

#[test]
fn llama_factory_trains_no_tower_unless_told() {
    let parts = |more: &str| {
        let text = format!("model_name_or_path: org/model-8B\nstage: sft\nfinetuning_type: lora\ndataset: a\n{more}");
        let imported = import(&text).unwrap();
        let node = json_of(&imported);
        let frozen = ["image_encoder", "image_projector"].map(|part| node["model"][part]["freeze"].as_bool());
        (frozen, imported.notes.iter().any(|note| note.contains("vision-language")))
    };
    assert_eq!(parts("template: llama3\n"), ([None, None], true));
    assert_eq!(parts("template: qwen2_vl\n"), ([Some(true), Some(true)], false));
    assert_eq!(
        parts("image_max_pixels: 262144\nfreeze_multi_modal_projector: false\n"),
        ([Some(true), Some(false)], false)
    );
}
