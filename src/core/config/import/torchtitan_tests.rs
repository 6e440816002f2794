//! Configs and commands in the manner of torchtitan's examples, and what comes of them.

use super::tests::{arrived, json_of, missing, settled};
use super::*;
use crate::config::load_text;
use serde_json::json;

const TEXT: &str = r#"# A run of 4 GPUs.

[job]
dump_folder = "./out"
description = "a small model"

[metrics]
log_freq = 5
enable_wandb = true

[model]
name = "llama3"
flavor = "1B"
hf_assets_path = "org/model-1B"
converters = ["float8"]

[optimizer]
name = "AdamW"
lr = 1e-3

[lr_scheduler]
warmup_steps = 1_00  # a tenth
decay_ratio = 0.8
decay_type = "linear"
min_lr_factor = 0.1

[training]
local_batch_size = 2
seq_len = 4096
steps = 1000
dataset = "c4"

[parallelism]
data_parallel_shard_degree = 4
tensor_parallel_degree = 1

[checkpoint]
enable = true
interval = 250
async_mode = "async"

[activation_checkpoint]
mode = "full"

[quantize.linear.float8]
filter_fqns = ["output"]

[training.new]
key = 7
"#;

/// Returns a config with these lines of `training`, and sections behind them.
fn of(lines: &str) -> Imported {
    import(&format!("[model]\nflavor = \"1B\"\nhf_assets_path = \"a/b\"\n[training]\n{lines}\n")).unwrap()
}

#[test]
fn a_config_of_torchtitan_arrives() {
    let imported = import(TEXT).unwrap();
    let config = load_text(&imported.yaml).unwrap_or_else(|report| panic!("{}\n{report}", imported.yaml)).config;
    let (train, data) = (&config.train, &config.data);
    assert_eq!((imported.from, config.run.name.as_str()), ("torchtitan", "llama3-1B"));
    assert_eq!((train.steps, train.global_batch_size, data.pack.max_tokens), (Some(1000), 8, 4096));
    // The warm-up and this decay leave a tenth of the run between them.
    assert_eq!((train.lr, train.min_lr, train.warmup_steps, train.decay_steps), (1e-3, 1e-4, 100, Some(800)));
    assert_eq!((train.optimizer.weight_decay, train.optimizer.betas, train.clip_grad), (0.1, [0.9, 0.95], 1.0));
    assert_eq!((config.checkpoint.every_steps, config.checkpoint.keep_last, data.shuffle), (250, 10, false));
    assert_eq!((config.log.every_steps, config.log.tensorboard), (5, false));
    let found = json_of(&imported);
    assert_eq!(found["data"]["train"], json!([{ "path": "hf://datasets/allenai/c4/en" }]));
    assert_eq!((&found["train"]["schedule"], &found["train"]["phase"]), (&json!("wsd"), &json!("pretrain")));
    assert_eq!(found["model"]["load"], json!("org/model-1B"));
    assert_eq!(
        (&found["model"]["weights"], &found["model"]["foundation"]["recompute"]),
        (&json!("random"), &json!("all"))
    );
    let wandb = json!({ "project": "torchtitan" });
    assert_eq!((&found["pools"]["foundation"]["replicas"], &found["log"]["wandb"]), (&json!(4), &wandb));
    assert_eq!(missing(&imported), ["model.converters", "training.new.key"]);
    assert!(settled(&imported).contains(&"quantize.linear.float8.filter_fqns"), "{:?}", imported.keys);
}

#[test]
fn options_replace_keys_of_the_toml_that_a_command_names() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.toml").display().to_string();
    std::fs::write(&path, TEXT.replace("data_parallel_shard_degree = 4", "")).unwrap();
    let launcher = "torchrun --nproc_per_node=8 --role rank --tee 3 -m torchtitan.train";
    let options = "--training.steps 10 --parallelism.tensor_parallel_degree=2 --training.batch_size 3";
    let imported = import(&format!("{launcher} --job.config_file {path} {options}\n")).unwrap();
    let found = json_of(&imported);
    assert_eq!((&found["train"]["steps"], &found["train"]["global_batch_size"]), (&json!(10), &json!(12)));
    let pool = json!({ "replicas": 4, "zero": 3, "tensor_parallel": 2, "sequence_parallel": true });
    assert_eq!(found["pools"]["foundation"], pool);
    assert!(settled(&imported).contains(&path.as_str()) && arrived(&imported).contains(&"--training.batch_size"));
    let words = |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
    let script = import_words(&words(&format!("CONFIG_FILE={path} ./run_train.sh --training.steps 20"))).unwrap();
    assert_eq!((script.from, &json_of(&script)["train"]["steps"]), ("torchtitan", &json!(20)));
    for program in ["./run_train.sh", "bash run_train.sh"] {
        let assigned = import(&format!("CONFIG_FILE={path}\nNGPU=2 {program} --training.steps 30\n")).unwrap();
        let found = json_of(&assigned);
        assert_eq!((&found["train"]["steps"], &found["pools"]["foundation"]["replicas"]), (&json!(30), &json!(2)));
        assert!(arrived(&assigned).contains(&"NGPU"), "{program}: {:?}", assigned.keys);
    }
    let elsewhere = import("python -m torchtitan.train --job.config_file none/here.toml --training.steps 5\n").unwrap();
    assert!(missing(&elsewhere).contains(&"none/here.toml"), "{:?}", elsewhere.keys);
    // The script of another program.
    assert!(import_words(&words("bash run_train.sh --epochs 3")).is_err());
}

#[test]
fn schedules_and_weights_are_those_of_torchtitan() {
    let schedule = |lines: &str| {
        let imported = of(&format!("steps = 1000\n[lr_scheduler]\n{lines}"));
        let train = json_of(&imported)["train"].clone();
        (train["schedule"].clone(), train["decay_steps"].clone(), missing(&imported).len())
    };
    assert_eq!(schedule("warmup_steps = 100"), (json!("linear"), Value::Null, 0));
    assert_eq!(schedule("warmup_steps = 100\ndecay_type = \"cosine\""), (json!("cosine"), Value::Null, 0));
    // A decay that begins behind the warm-up leaves no stable part.
    assert_eq!(schedule("warmup_steps = 300\ndecay_ratio = 0.9"), (json!("linear"), Value::Null, 0));
    assert_eq!(schedule("decay_ratio = 0.5\ndecay_type = \"sqrt\""), (json!("wsd"), json!(500), 1));
    assert_eq!(schedule("decay_ratio = 0.0"), (json!("constant"), Value::Null, 0));
    // A short run with the schedule of a long one ends before the decay, or within the warm-up.
    let long = "[lr_scheduler]\ntotal_steps = 1000\nwarmup_steps = 200\ndecay_ratio = 0.5";
    let short = of(&format!("dataset = \"c4\"\nsteps = 100\n{long}"));
    assert_eq!(missing(&short), ["lr_scheduler.total_steps"]);
    let short = load_text(&short.yaml).unwrap_or_else(|report| panic!("{}\n{report}", short.yaml)).config;
    assert_eq!((short.train.steps, short.train.warmup_steps), (Some(100), 100));
    // The first release.
    let job = "[job]\nprint_args = false\nuse_for_integration_test = true\n";
    let first = of(&format!("compile = true\n{job}[checkpoint]\nlast_save_model_weights_only = true"));
    assert_eq!(missing(&first), Vec::<&str>::new());
    let decays = |lines: &str| of(lines).notes.iter().any(|note| note.contains("norms and biases"));
    assert!(decays("steps = 1") && !decays("steps = 1\n[optimizer]\nweight_decay = 0"));
    let loaded = json_of(&of("steps = 1\n[checkpoint]\nenable = true\ninitial_load_in_hf = true\nkeep_latest_k = 0"));
    assert_eq!((&loaded["model"]["load"], &loaded["model"]["weights"]), (&json!("a/b"), &Value::Null));
    assert_eq!(loaded["checkpoint"]["keep_last"], json!(10));
    let unsaved = json_of(&of("dataset_path = \"./texts\"\n[validation]\nenable = true\nfreq = 50"));
    assert_eq!(unsaved["checkpoint"], json!({ "every_steps": 0, "at_end": false }));
    assert_eq!(unsaved["data"]["train"], json!([{ "path": "./texts" }]));
    assert_eq!(unsaved["eval"], json!({ "path": "hf://datasets/allenai/c4/en/validation", "every_steps": 50 }));
    let flux = import("[model]\nname = \"flux\"\n[training]\nsteps = 1\n").unwrap_err().to_string();
    assert!(flux.contains("torchtitan's model `flux`"), "{flux}");
}

#[test]
fn biases_of_routers_follow_the_load_by_the_same_step() {
    let of = |name: &str, flavor: &str, line: &str| {
        let text = format!("[model]\nname = \"{name}\"\nflavor = \"{flavor}\"\n{line}\n[training]\nsteps = 2\n");
        let imported = import(&text).unwrap();
        let is_told = imported.notes.iter().any(|note| note.contains("load_balance_coeff"));
        (json_of(&imported)["model"]["moe"]["bias_update_rate"].as_f64(), is_told, missing(&imported).len())
    };
    let dense = of("llama3", "8B", "");
    assert_eq!((dense.0, dense.1), (None, false));
    for (name, flavor) in [("deepseek_v3", "16B"), ("llama4", "17bx16e"), ("qwen3", "30B-A3B"), ("qwen3", "moe")] {
        assert_eq!(of(name, flavor, ""), (None, true, dense.2), "{name} {flavor}");
    }
    for key in ["load_balance_coeff", "moe_args.load_balance_coeff"] {
        assert_eq!(of("deepseek_v3", "16B", &format!("{key} = 1e-2")), (Some(0.01), false, dense.2), "{key}");
    }
}
