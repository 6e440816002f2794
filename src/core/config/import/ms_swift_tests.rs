//! Commands and configs in the manner of ms-swift's examples, and what comes of them.

use super::tests::{arrived, json_of, missing, settled};
use super::*;
use crate::config::load_text;
use serde_json::json;

const SFT: &str = "CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=2 \\
swift sft \\
    --model org/text-7B \\
    --train_type lora \\
    --dataset 'org/alpaca:en#500' HF::org/chat \\
    --split_dataset_ratio 0.01 \\
    --torch_dtype bfloat16 \\
    --num_train_epochs 2 \\
    --per_device_train_batch_size 1 \\
    --per_device_eval_batch_size 1 \\
    --learning_rate 2e-4 \\
    --lora_rank 16 \\
    --target_modules all-linear \\
    --gradient_accumulation_steps 4 \\
    --eval_steps 50 \\
    --save_steps 100 \\
    --save_total_limit 2 \\
    --logging_steps 10 \\
    --max_length 4096 \\
    --output_dir output \\
    --system 'Be brief.' \\
    --warmup_ratio 0.05 \\
    --dataloader_num_workers 4 \\
    --deepspeed zero2 \\
    --model_author me \\
    --some_new_option 7
";

/// Returns a command with these options.
fn of(method: &str, options: &str) -> Imported {
    import(&format!("swift {method} --model org/text-7B --dataset a.jsonl {options}\n")).unwrap()
}

#[test]
fn a_command_of_ms_swift_arrives() {
    let imported = import(SFT).unwrap();
    let config = load_text(&imported.yaml).unwrap_or_else(|report| panic!("{}\n{report}", imported.yaml)).config;
    let train = &config.train;
    assert_eq!((imported.from, config.run.name.as_str(), config.run.seed), ("ms-swift", "output", 42));
    assert_eq!((train.epochs, train.global_batch_size, config.data.pack.max_tokens), (Some(2.0), 8, 4096));
    assert_eq!((train.lr, train.warmup_ratio, train.optimizer.weight_decay), (2e-4, Some(0.05), 0.1));
    assert_eq!((train.optimizer.betas, config.data.val_size), ([0.9, 0.95], 0.01));
    assert_eq!((config.checkpoint.every_steps, config.log.every_steps), (100, 10));
    let lora = config.model.foundation.lora.unwrap();
    assert_eq!((lora.r, lora.alpha, lora.dropout, lora.target_modules), (Some(16), Some(32.0), Some(0.05), None));
    let found = json_of(&imported);
    let alpaca = json!({ "path": "hf://datasets/org/alpaca/en", "max_samples": 500, "select": "random" });
    assert_eq!(found["data"]["train"], json!([alpaca, { "path": "hf://datasets/org/chat" }]));
    assert_eq!(config.data.system.as_deref(), Some("Be brief."));
    assert_eq!(found["pools"]["foundation"], json!({ "replicas": 2, "zero": 2 }));
    assert_eq!((&found["train"]["schedule"], &found["eval"]["every_steps"]), (&json!("cosine"), &json!(50)));
    assert_eq!(missing(&imported), ["--model_author", "--some_new_option"]);
    assert!(settled(&imported).contains(&"--dataloader_num_workers"), "{:?}", imported.keys);
    for key in ["--train_type", "--model", "NPROC_PER_NODE", "--deepspeed"] {
        assert!(arrived(&imported).contains(&key), "{key}: {:?}", imported.keys);
    }
    assert_eq!(found["data"]["mix"], "samples");
    for part in ["repeats samples", "ModelScope"] {
        assert!(imported.notes.iter().any(|note| note.contains(part)), "{part}: {:?}", imported.notes);
    }
}

#[test]
fn misspelled_options_of_adapters_have_no_counterpart() {
    let options = "--max_length 64 --lora_rnk 8 --target_module q_proj --lora_dtype bfloat16 --lora_ga_batch_size 2";
    let imported = of("sft", options);
    assert_eq!(missing(&imported), ["--lora_dtype", "--lora_rnk", "--target_module"]);
    assert!(settled(&imported).contains(&"--lora_ga_batch_size"), "{:?}", imported.keys);
    for others in ["--tuner_type full", "--adapters out/checkpoint-9"] {
        let imported = of("sft", &format!("{options} {others}"));
        assert!(missing(&imported).is_empty(), "{others}: {:?}", imported.keys);
    }
}

#[test]
fn uploads_of_ms_swift_are_missing_only_where_they_are_on() {
    let off = of("sft", "--max_length 64 --push_to_hub false");
    assert!(missing(&off).is_empty(), "{:?}", off.keys);
    let on = of("sft", "--max_length 64 --push_to_hub true --hub_model_id me/m");
    assert_eq!(missing(&on), ["--hub_model_id", "--push_to_hub"]);
}

#[test]
fn variables_before_a_command_of_ms_swift_are_accounted_for() {
    let of = |model: &str| {
        let variables = "export USE_HF=1\nMAX_NUM=6\nIMAGE_MAX_TOKEN_NUM=1024 VIDEO_MAX_PIXELS=50176 \\\n\
                         FPS_MAX_FRAMES=12 MIN_PIXELS=$SIZE USE_AUDIO_IN_VIDEO=true ";
        import(&format!("{variables}swift sft --model {model} --dataset org/a --max_length 64\n")).unwrap()
    };
    let (new, old) = (of("org/Qwen3-VL-4B"), of("org/Qwen2.5-VL-3B"));
    let video = |max_pixels: Option<u64>| {
        let mut video = json!({ "max_frames": 12, "sound": true });
        max_pixels.into_iter().for_each(|max| video["max_pixels"] = max.into());
        video
    };
    let [new_data, old_data] = [&new, &old].map(|imported| json_of(imported)["data"].clone());
    assert_eq!((&new_data["image"], &new_data["video"]), (&json!({ "max_pixels": 1_048_576 }), &video(None)));
    assert_eq!((&old_data["image"], &old_data["video"]), (&json!({ "max_pixels": 802_816 }), &video(Some(50_176))));
    assert_eq!(missing(&new), ["MAX_NUM", "MIN_PIXELS", "VIDEO_MAX_PIXELS"]);
    assert_eq!(missing(&old), ["MAX_NUM", "MIN_PIXELS"]);
    // Of how many nodes there are nothing is known, and so of how many devices.
    let options = "--model a/b --dataset c.jsonl --gradient_accumulation_steps 2";
    let nodes = import(&format!("NNODES=$N NPROC_PER_NODE=4 swift sft {options}\n")).unwrap();
    assert_eq!((missing(&nodes), &json_of(&nodes)["train"]["global_batch_size"]), (vec!["NNODES"], &json!(2)));
    let started = import("MAX_PIXELS=50176\nnohup swift sft --model a/b --dataset c.jsonl\n").unwrap();
    assert_eq!(json_of(&started)["data"]["image"], json!({ "max_pixels": 50_176 }));
    assert!(settled(&new).contains(&"USE_HF") && !new.notes.iter().any(|note| note.contains("ModelScope")));
}

#[test]
fn a_config_of_ms_swift_arrives_alone_and_below_a_command() {
    let text = "model: org/text-7B\ntuner_type: full\ndataset: [a.jsonl]\nval_dataset: b.jsonl\nsave_steps: 20\n";
    let imported = import(text).unwrap();
    let found = json_of(&imported);
    // Full training has another rate, and accumulates to 16 samples.
    assert_eq!((found["train"]["lr"].as_f64(), &found["train"]["global_batch_size"]), (Some(1e-5), &json!(16)));
    assert_eq!((&found["model"]["foundation"], &found["run"]["name"]), (&Value::Null, &json!("text-7B")));
    assert_eq!(found["eval"], json!({ "path": "b.jsonl", "every_steps": 20 }));
    assert_eq!((imported.from, missing(&imported)), ("ms-swift", vec![]));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sft.yaml").display().to_string();
    std::fs::write(&path, text).unwrap();
    let below = import(&format!("swift sft {path} --learning_rate 3e-6 --eval_strategy no\n")).unwrap();
    let found = json_of(&below);
    assert_eq!((found["train"]["lr"].as_f64(), &found["eval"]["every_steps"]), (Some(3e-6), &Value::Null));
    assert!(settled(&below).contains(&path.as_str()) && settled(&below).contains(&"--eval_strategy"));
    let elsewhere = import("swift sft none/here.yaml --learning_rate 1e-5\n").unwrap();
    assert_eq!(missing(&elsewhere), ["none/here.yaml"]);
}

#[test]
fn evaluations_and_checkpoints_of_each_epoch_arrive() {
    let held = "--max_length 64 --split_dataset_ratio 0.1";
    for options in ["--save_strategy epoch", "--save_strategy epoch --eval_strategy epoch --eval_steps 7"] {
        let imported = of("sft", &format!("{held} {options}"));
        let found = json_of(&imported);
        assert_eq!((&found["eval"], missing(&imported)), (&json!({ "every_epochs": 1.0 }), vec![]), "{options}");
        assert_eq!(found["checkpoint"]["every_epochs"], json!(1.0), "{options}");
    }
    assert_eq!(missing(&of("sft", &format!("{held} --eval_strategy epoch --max_steps 9"))), ["--eval_strategy"]);
}

#[test]
fn methods_have_the_defaults_of_ms_swift() {
    let preference = |options: &str| json_of(&of("rlhf", options))["train"]["preference"].clone();
    assert_eq!(preference(""), json!({ "loss": "sigmoid", "beta": 0.1 }));
    let dpo = preference("--rlhf_type dpo --beta 0.5 --loss_type ipo --rpo_alpha 0.2");
    assert_eq!(dpo, json!({ "loss": "ipo", "beta": 0.5, "nll_weight": 0.2 }));
    let simpo = json!({ "loss": "simpo", "beta": 2.0, "gamma": 1.0, "nll_weight": 1.0 });
    assert_eq!(preference("--rlhf_type simpo"), simpo);
    let kto = preference("--rlhf_type kto --per_device_train_batch_size 4 --desirable_weight 0.5");
    assert_eq!(kto, json!({ "loss": "kto", "beta": 0.1, "group_size": 4, "desirable_weight": 0.5 }));
    // Batches of KTO are counted in groups, and have 16 samples as well.
    for (options, groups) in [
        ("", 8),
        ("--per_device_train_batch_size 4", 4),
        ("--per_device_train_batch_size 4 --gradient_accumulation_steps 3", 3),
        ("--per_device_train_batch_size 4 --nproc_per_node 8", 8),
    ] {
        let train = json_of(&of("rlhf", &format!("--rlhf_type kto {options}")))["train"].clone();
        assert_eq!(train["global_batch_size"], json!(groups), "{options}");
    }
    assert_eq!(json_of(&of("pt", "--packing true --max_steps 9"))["train"]["phase"], json!("pretrain"));
    assert_eq!(json_of(&of("sft", "--loss_scale last_round"))["train"]["learn"], json!("last"));
    for (line, part) in [
        ("swift rlhf --rlhf_type grpo --model a --dataset b", "rlhf_type `grpo`"),
        ("swift sft --tuner_type adalora --model a --dataset b", "tuner_type `adalora`"),
        ("swift sft --task_type embedding --model a --dataset b", "task_type `embedding`"),
    ] {
        let error = import(line).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let mine = import("model: a/b\ndataset: c\ntuner_type: lora\nmicro_batch_size: 2\n").unwrap_err().to_string();
    assert!(mine.contains("`megatron` commands"), "{mine}");
    assert!(import("model: a/b\ndataset: c\n").unwrap_err().to_string().contains("ms-swift's `model`, `dataset`"));
}

#[test]
fn configs_that_compare_answers_pass_the_check() {
    let options = "--max_length 512 --val_dataset b.jsonl --eval_strategy no --acc_strategy seq --loss_type sigmoid";
    let imported = import(&format!("swift rlhf --model org/text-7B --dataset org/pairs {options}\n")).unwrap();
    let config = load_text(&imported.yaml).unwrap_or_else(|report| panic!("{}\n{report}", imported.yaml)).config;
    assert_eq!((config.eval, missing(&imported)), (None, vec![]));
    for key in ["--val_dataset", "--eval_strategy", "--acc_strategy"] {
        assert!(settled(&imported).contains(&key), "{key}: {:?}", imported.keys);
    }
    let listed = import("model: a/b\nrlhf_type: dpo\ndataset: c.jsonl\nloss_type: [hinge]\n").unwrap();
    assert_eq!(json_of(&listed)["train"]["preference"]["loss"], json!("hinge"));
}

#[test]
fn parts_layout_and_frozen_precision_arrive() {
    let frozen = |options: &str| {
        let model = json_of(&of("sft", options))["model"].clone();
        ["image_encoder", "image_projector"].map(|part| model[part]["freeze"].as_bool())
    };
    assert_eq!(frozen(""), [None, None]);
    assert_eq!(frozen("--freeze_vit true"), [Some(true), Some(true)]);
    assert_eq!(frozen("--tuner_type full --freeze_vit false --freeze_aligner false"), [Some(false), Some(false)]);
    // Beside adapters a tower that is not frozen has adapters, and is not trained in full.
    let adapted = of("sft", "--freeze_vit false");
    assert_eq!((missing(&adapted), frozen("--freeze_vit false")), (vec!["--freeze_vit"], [Some(true), Some(true)]));
    assert_eq!(missing(&of("sft", "--freeze_llm true")), ["--freeze_llm"], "only other parts have adapters");
    assert_eq!(missing(&of("sft", "--external_plugins a.py")), ["--external_plugins"], "it may have the loss");
    let whole = |options: &str| json_of(&of("sft", &format!("--torch_dtype float32 {options}")));
    assert_eq!(whole("")["train"]["precision"], json!("float32"));
    let mixed = whole("--bf16 true --model_revision master");
    assert_eq!((&mixed["train"]["precision"], &mixed["model"]["load"]), (&json!("bf16"), &json!("org/text-7B")));
    let rounded = json_of(&of("sft", "--quant_method bnb --quant_bits 4 --bnb_4bit_quant_type nf4"));
    assert_eq!(rounded["model"]["foundation"]["frozen_precision"], json!("nf4_double"));
    let words = "torchrun --nproc_per_node 4 swift/cli/sft.py --model a/b --dataset c.jsonl --sequence_parallel_size 2 \
                 --gradient_accumulation_steps 3 --truncation_strategy left";
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    let split = import_words(&words).unwrap();
    let found = json_of(&split);
    assert_eq!((split.from, &found["train"]["global_batch_size"]), ("ms-swift", &json!(6)));
    let layout = json!({ "replicas": 2, "context_parallel": 2, "context_attention": "ulysses" });
    assert_eq!(found["pools"]["foundation"], layout);
    assert_eq!(missing(&split), ["--truncation_strategy"]);
}

#[test]
fn a_projector_has_a_rate_of_its_own_beside_that_of_its_tower() {
    let found = |options: &str| {
        let imported = of("sft", &format!("--tuner_type full --learning_rate 0.25 --freeze_vit false {options}"));
        assert_eq!(missing(&imported), Vec::<&str>::new());
        let config = json_of(&imported);
        let ratio = config["model"]["image_projector"]["lr_ratios"]["*"].as_f64();
        (config["pools"]["encoder"]["lr"].as_f64(), ratio)
    };
    let trained = |options: &str| found(&format!("--freeze_aligner false {options}"));
    assert_eq!(trained(""), (None, None));
    assert_eq!(trained("--aligner_lr 0.5"), (None, Some(2.0)));
    // Without a rate of its own it has that of the run.
    assert_eq!(trained("--vit_lr 0.125"), (Some(0.125), Some(2.0)));
    assert_eq!(trained("--vit_lr 0.125 --aligner_lr 0.125"), (Some(0.125), None));
    assert_eq!(found("--freeze_aligner true --vit_lr 0.125 --aligner_lr 0.5"), (Some(0.125), None));
    // Nothing is relative to 0.
    let still = of("sft", "--tuner_type full --freeze_vit false --freeze_aligner false --vit_lr 0 --aligner_lr 0.5");
    assert_eq!(missing(&still), ["--aligner_lr"]);
    assert!(still.notes.iter().any(|note| note.contains("projector is not trained")), "{:?}", still.notes);
}

#[test]
fn a_path_that_ends_like_a_program_is_none() {
    let options = "--model a/b --dataset c.jsonl --gradient_accumulation_steps 3";
    let of = |line: &str| {
        let imported = import(&format!("{line} {options}\n")).unwrap();
        let found = json_of(&imported);
        (imported.from, found["train"]["global_batch_size"].as_u64(), found["data"]["image"]["max_pixels"].as_u64())
    };
    for program in ["swift/cli/sft.py", "-m swift.cli.sft"] {
        for path in ["/data/swift", "/data/trl", "/data/llamafactory-cli", "/data/x"] {
            let line = format!("MAX_PIXELS=50176 torchrun --log_dir {path} --nproc_per_node 4 {program}");
            assert_eq!(of(&line), ("ms-swift", Some(12), Some(50_176)), "{line}");
        }
    }
    assert_eq!(of("python -m swift.cli.sft"), ("ms-swift", Some(3), None));
    let megatron = import("torchrun --log_dir /data/swift x/train.py --train-iters 3 --global-batch-size 8\n").unwrap();
    assert_eq!((megatron.from, &json_of(&megatron)["train"]["steps"]), ("Megatron", &json!(3)));
}

#[test]
fn a_weight_of_0_of_the_load_balancing_loss_is_a_key_of_mixtures_alone() {
    let of = |model: &str, weight: &str| {
        let options = format!("--max_length 64 --router_aux_loss_coef {weight}");
        let imported = import(&format!("swift sft --model {model} --dataset a.jsonl {options}\n")).unwrap();
        assert_eq!(missing(&imported), [""; 0]);
        json_of(&imported)["model"]["moe"]["aux_loss_coef"].as_f64()
    };
    assert_eq!(of("org/text-7B", "0"), None);
    assert_eq!((of("org/text-30B-A3B", "0"), of("org/text-30B-A3B", "1e-3")), (Some(0.0), Some(1e-3)));
    assert_eq!(of("org/text-7B", "1e-3"), Some(1e-3), "what is asked for is not dropped");
}

#[test]
fn columns_of_ms_swift_arrive_the_other_way_round() {
    let of = |columns: &str| {
        let line =
            format!("swift sft --model org/text-7B --dataset a.jsonl --val_dataset b.jsonl --columns '{columns}'");
        let imported = import(&line).unwrap();
        let found = json_of(&imported);
        let left = missing(&imported).contains(&"--columns");
        (found["data"]["train"][0]["columns"].clone(), found["eval"]["columns"].clone(), left)
    };
    let columns = json!({ "query": "question", "response": "answer" });
    assert_eq!(of(r#"{"question": "query", "answer": "response"}"#), (columns.clone(), columns, false));
    assert_eq!(of(r#"{"question": "solution"}"#), (Value::Null, Value::Null, true));
    assert_eq!(of("question"), (Value::Null, Value::Null, true));
}
