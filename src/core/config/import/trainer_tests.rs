//! Checks how keys of transformers' trainer and of axolotl are translated, and which notes tell where a run would be another one.

use super::defaults_tests::{AXOLOTL, FACTORY, TRL, says};
use super::tests::{json_of, missing, settled};
use super::*;
use serde_json::json;

#[test]
fn a_batch_is_that_of_all_devices_that_are_known() {
    let batch = "per_device_train_batch_size: 2\ngradient_accumulation_steps: 4\n";
    let alone = import(&format!("{FACTORY}{batch}")).unwrap();
    assert_eq!((&json_of(&alone)["train"]["global_batch_size"], says(&alone, "multiply it")), (&json!(8), true));
    let launched = import(&format!("{TRL}{batch}num_processes: 8\n")).unwrap();
    let found = json_of(&launched);
    assert_eq!(
        (&found["train"]["global_batch_size"], &found["pools"]["foundation"]["replicas"]),
        (&json!(64), &json!(8))
    );
    assert!(!says(&launched, "multiply it"));
    let line =
        "torchrun --nproc_per_node 4 trl/scripts/sft.py --model_name_or_path a/b --per_device_train_batch_size 2";
    let launched = import(line).unwrap();
    assert_eq!((&json_of(&launched)["train"]["global_batch_size"], missing(&launched)), (&json!(8), vec![]));
    let layout =
        "micro_batch_size: 3\ndp_replicate_size: 2\ndp_shard_size: 4\ntensor_parallel_size: 2\nfsdp_version: 2\n";
    let sharded = json_of(&import(&format!("{AXOLOTL}{layout}")).unwrap());
    assert_eq!(sharded["train"]["global_batch_size"], json!(24));
    assert_eq!(sharded["pools"]["foundation"], json!({ "replicas": 8, "tensor_parallel": 2, "zero": 3 }));
}

#[test]
fn early_stopping_and_the_best_model_arrive() {
    let every = "eval_strategy: steps\neval_steps: 50\nload_best_model_at_end: true\n";
    let stopped =
        import(&format!("{FACTORY}{every}metric_for_best_model: eval_loss\nearly_stopping_steps: 3\n")).unwrap();
    assert_eq!(json_of(&stopped)["eval"], json!({ "every_steps": 50, "patience": 3 }));
    let found = settled(&stopped);
    assert!(found.contains(&"load_best_model_at_end") && found.contains(&"metric_for_best_model"), "{found:?}");
    assert!(missing(&stopped).is_empty(), "{:?}", missing(&stopped));
    let other = import(&format!("{FACTORY}{every}metric_for_best_model: accuracy\ngreater_is_better: true\n")).unwrap();
    assert_eq!(missing(&other), ["greater_is_better", "metric_for_best_model"]);
}

/// A run refuses `eval.patience` where it evaluates nothing before its end.
#[test]
fn patience_without_evaluations_during_the_run_is_told() {
    for (lines, key) in [
        (format!("{FACTORY}eval_strategy: no\nval_size: 0.1\n"), "early_stopping_steps"),
        (FACTORY.to_owned(), "early_stopping_steps"),
        (format!("{AXOLOTL}eval_strategy: no\nval_set_size: 0.1\n"), "early_stopping_patience"),
        (AXOLOTL.to_owned(), "early_stopping_patience"),
    ] {
        let imported = import(&format!("{lines}{key}: 3\n")).unwrap();
        let found = json_of(&imported);
        assert_eq!((&found["eval"]["patience"], missing(&imported)), (&json!(null), vec![key]), "{lines}");
    }
    let by_epochs = format!("{AXOLOTL}evals_per_epoch: 2\nval_set_size: 0.1\nearly_stopping_patience: 3\n");
    let found = json_of(&import(&by_epochs).unwrap());
    assert_eq!(found["eval"], json!({ "every_epochs": 0.5, "patience": 3 }));
}

#[test]
fn where_they_pack_a_batch_counts_packs() {
    let mode = |text: &str| json_of(&import(text).unwrap())["data"]["pack"]["mode"].clone();
    for (text, expected) in [
        (format!("{AXOLOTL}sample_packing: true\n"), json!("offline")),
        (format!("{AXOLOTL}sample_packing: true\nmax_steps: 9\n"), json!("stream")),
        (format!("{AXOLOTL}sample_packing: false\n"), json!(null)),
        (format!("{AXOLOTL}sample_packing: true\nrl: dpo\n"), json!(null)),
        (format!("{FACTORY}packing: true\n"), json!("offline")),
        (format!("{FACTORY}neat_packing: true\n"), json!("offline")),
        (FACTORY.to_owned(), json!(null)),
        (format!("{FACTORY}train_on_prompt: true\n"), json!(null)),
        (FACTORY.replace("sft", "pt"), json!("offline")),
        (FACTORY.replace("sft", "pt") + "packing: false\n", json!(null)),
        (format!("{TRL}packing: true\n"), json!("offline")),
        (TRL.to_owned(), json!(null)),
    ] {
        assert_eq!(mode(&text), expected, "{text}");
    }
    assert!(says(&import(&FACTORY.replace("sft", "pt")).unwrap(), "preprocess_data.py"));
}

#[test]
fn shares_of_steps_are_steps() {
    let every = "save_steps: 0.25\neval_strategy: steps\neval_steps: 0.1\nlogging_steps: 5\n";
    let known = import(&format!("{FACTORY}{every}max_steps: 30\n")).unwrap();
    let found = json_of(&known);
    let steps = ["checkpoint", "eval", "log"].map(|section| found[section]["every_steps"].as_u64());
    assert_eq!(steps, [Some(8), Some(3), Some(5)]);
    let unknown = import(&format!("{FACTORY}{every}")).unwrap();
    assert_eq!(missing(&unknown), ["eval_steps", "save_steps"]);
    // A trainer saves every 500 steps unless told otherwise.
    for text in [FACTORY.to_owned(), format!("{FACTORY}save_strategy: steps\n")] {
        assert_eq!(json_of(&import(&text).unwrap())["checkpoint"]["every_steps"], json!(500), "{text}");
    }
    let by_epochs = json!({ "every_epochs": 1.0 });
    assert_eq!(json_of(&import(&format!("{FACTORY}save_strategy: epoch\n")).unwrap())["checkpoint"], by_epochs);
}

#[test]
fn it_is_told_that_checkpoints_are_removed_that_would_be_kept_there() {
    let told = |lines: &str| says(&import(&format!("{FACTORY}{lines}")).unwrap(), "checkpoint.keep_last");
    assert_eq!(["", "save_strategy: epoch\n", "save_total_limit:\n"].map(told), [true; 3]);
    assert_eq!(["save_total_limit: 2\n", "save_strategy: 'no'\n"].map(told), [false; 2]);
}

#[test]
fn evaluations_of_epochs_arrive_where_samples_are_held_out() {
    let of = |lines: &str| import(&format!("{FACTORY}eval_strategy: epoch\n{lines}")).unwrap();
    let held = of("val_size: 0.1\nload_best_model_at_end: true\n");
    assert_eq!((&json_of(&held)["eval"], missing(&held)), (&json!({ "every_epochs": 1.0 }), vec![]));
    let of_steps = of("val_size: 0.1\nmax_steps: 9\n");
    assert_eq!(json_of(&of_steps)["eval"], json!({ "every_steps": 100 }));
    assert_eq!(missing(&of_steps), ["eval_strategy"]);
    assert_eq!(missing(&of("")), ["eval_strategy"]);
    let per_epoch = |held_out: f64| {
        import(&format!("{AXOLOTL}evals_per_epoch: 2\nsaves_per_epoch: 1\nval_set_size: {held_out}\n")).unwrap()
    };
    let found = json_of(&per_epoch(0.1));
    let every = ["eval", "checkpoint"].map(|section| found[section]["every_epochs"].as_f64());
    assert_eq!(every, [Some(0.5), Some(1.0)]);
    assert!(settled(&per_epoch(0.0)).contains(&"evals_per_epoch") && missing(&per_epoch(0.0)).is_empty());
    let by_default = json_of(&import(&format!("{AXOLOTL}eval_strategy: epoch\nval_set_size: 0.1\n")).unwrap());
    assert_eq!(by_default["checkpoint"], json!({ "keep_last": 4, "every_epochs": 1.0 }), "it saves each epoch");
    let silent = json_of(&import(&format!("{AXOLOTL}val_set_size: 0.1\n")).unwrap());
    assert_eq!((&by_default["eval"], &silent["eval"]), (&json!({ "every_epochs": 1.0 }), &by_default["eval"]));
    let of_steps = import(&format!("{AXOLOTL}eval_strategy: epoch\nval_set_size: 0.1\nmax_steps: 9\n")).unwrap();
    assert_eq!(json_of(&of_steps)["eval"], json!({ "every_steps": 100 }));
    assert_eq!(missing(&of_steps), ["eval_strategy"]);
    let of_steps = json_of(&import(&format!("{AXOLOTL}save_steps: 5\nsave_total_limit: 2\n")).unwrap());
    assert_eq!(of_steps["checkpoint"], json!({ "keep_last": 2, "every_steps": 5 }));
}

#[test]
fn defaults_that_differ_are_written() {
    let factory = json_of(&import(FACTORY).unwrap());
    assert_eq!(factory["data"]["pack"], json!({ "too_long": "truncate", "max_tokens": 2048 }));
    let axolotl = json_of(&import(AXOLOTL).unwrap());
    assert_eq!((&axolotl["train"]["precision"], &axolotl["train"]["schedule"]), (&json!("bf16"), &json!("cosine")));
    let plain = json_of(&import(&format!("{AXOLOTL}bf16: false\nlr_scheduler: linear\n")).unwrap());
    assert_eq!((&plain["train"]["precision"], &plain["train"]["schedule"]), (&json!(null), &json!("linear")));
    let low = json_of(&import(&format!("{AXOLOTL}cosine_min_lr_ratio: 0.1\n")).unwrap());
    assert!((low["train"]["min_lr"].as_f64().unwrap() - 1e-5).abs() < 1e-12, "{low}");
    // Keys of adapters say nothing without one.
    let whole = import(&format!("{AXOLOTL}adapter:\nlora_r: 8\nlora_alpha: 16\n")).unwrap();
    assert_eq!(json_of(&whole)["model"], json!({ "load": "a/b" }));
    assert!(["lora_r", "lora_alpha"].iter().all(|key| settled(&whole).contains(key)));
}

#[test]
fn trackers_evaluations_and_shards_arrive() {
    let of = |lines: &str| import(&format!("{FACTORY}{lines}")).unwrap();
    let several = of("report_to: [tensorboard, wandb]\n");
    assert_eq!((&json_of(&several)["log"]["wandb"]["project"], missing(&several)), (&json!("loongforge"), vec![]));
    let unknown = of("report_to: [wandb, trackio]\n");
    assert_eq!(
        (&json_of(&unknown)["log"]["wandb"]["project"], missing(&unknown)),
        (&json!("loongforge"), vec!["report_to"])
    );
    for line in ["report_to: swanlab\n", "use_swanlab: true\n"] {
        let told = of(line);
        let is_told = |key: &KeyFate| matches!(key.fate, Fate::Missing(why) if why.contains("swanlab convert"));
        assert!(told.keys.iter().any(is_told), "{line}: {:?}", told.keys);
    }
    for word in ["no", "\"no\"", "false"] {
        assert!(settled(&of(&format!("eval_strategy: {word}\neval_steps: 5\n"))).contains(&"eval_steps"), "{word}");
    }
    let zero = |lines: &str| json_of(&of(lines))["pools"]["foundation"]["zero"].clone();
    assert_eq!([zero("fsdp: full_shard auto_wrap\n"), zero("fsdp: [shard_grad_op]\n")], [json!(3), json!(2)]);
    assert_eq!([zero("fsdp: \"\"\n"), zero("")], [json!(null), json!(null)]);
}

/// Limits of frames are of one there, and of all together in some models here.
#[test]
fn limits_of_frames_are_not_taken_for_those_of_videos() {
    let lines = "stage: sft\nvideo_max_pixels: 16384\nvideo_fps: 2.0\n";
    let each = import(&format!("model_name_or_path: org/Qwen2.5-VL-7B\n{lines}")).unwrap();
    assert_eq!(json_of(&each)["data"]["video"], json!({ "max_pixels": 16384, "fps": 2.0, "max_frames": 128 }));
    let all = import(&format!("model_name_or_path: org/Qwen3-VL-8B\n{lines}")).unwrap();
    let frames = json!({ "fps": 2.0, "max_frames": 128 });
    assert_eq!((&json_of(&all)["data"]["video"], missing(&all)), (&frames, vec!["video_max_pixels"]));
}

#[test]
fn moments_have_the_bits_that_were_asked_for() {
    for (name, kind, is_missing) in [
        ("adamw_torch_8bit", json!("adamw_8bit"), false),
        ("adamw_torch_4bit", json!(null), true),
        ("paged_adamw_32bit", json!(null), false),
    ] {
        let imported = import(&format!("{FACTORY}optim: {name}\n")).unwrap();
        assert_eq!(
            (&json_of(&imported)["train"]["optimizer"]["type"], missing(&imported).len() == 1),
            (&kind, is_missing),
            "{name}"
        );
    }
}

#[test]
fn the_closing_token_that_axolotl_trains_on_is_accounted_for() {
    for (which, is_missing) in [("turn", false), ("all", true), ("last", true)] {
        let set = format!("{{path: a/b, type: chat_template, train_on_eos: {which}}}");
        let imported = import(&format!("base_model: a/b\ndatasets: [{set}]\nlearning_rate: 1e-4\n")).unwrap();
        assert_eq!(missing(&imported).contains(&"datasets[0].train_on_eos"), is_missing, "{which}");
        assert!(!says(&imported, "### Instruction:"), "{which}");
    }
}

/// Every key of a data set is translated or reported.
#[test]
fn keys_of_axolotls_sets_arrive_or_are_named() {
    let sets = "base_model: a/b
datasets:
  - {path: org/data-v1.5, name: main, split: test, type: chat_template, field_messages: talks}
  - {path: org/whole, split: 'train[:20%]', type: alpaca, shards: 4, roles: {user: [human], assistant: [gpt]}}
  - {path: org/files, data_files: [a.jsonl, b.jsonl], type: {field_instruction: q}}
  - {path: json, data_files: here/x.jsonl, ds_type: json, type: completion, field: body}
test_datasets: [{path: ./held.jsonl, split: train}]
";
    let imported = import(sets).unwrap();
    assert_eq!(
        json_of(&imported)["data"]["train"],
        json!([
            { "path": "hf://datasets/org/data-v1.5/main/test", "columns": { "messages": "talks" } },
            { "path": "hf://datasets/org/whole" },
            { "path": ["hf://datasets/org/files/a.jsonl", "hf://datasets/org/files/b.jsonl"] },
            { "path": "here/x.jsonl", "columns": { "text": "body" } },
        ])
    );
    assert_eq!(missing(&imported), ["datasets[1].shards", "datasets[1].split", "datasets[2].type"]);
    assert!(says(&imported, "### Instruction:"), "{:?}", imported.notes);
    assert_eq!(json_of(&imported)["eval"]["path"], json!("./held.jsonl"));
    assert_eq!(json_of(&imported)["data"]["mix"], json!("samples"));
    let texts = "base_model: a/b\npretraining_dataset: {path: org/web, name: small, type: pretrain, text_column: body}\nmax_steps: 5\n";
    let found = json_of(&import(texts).unwrap());
    assert_eq!(found["train"]["phase"], json!("pretrain"));
    assert_eq!(
        found["data"]["train"],
        json!([{ "path": "hf://datasets/org/web/small", "columns": { "text": "body" } }])
    );
    let pairs = "base_model: a/b\nrl: dpo\ndatasets: [{path: ./p.json, field_messages: talk, field_chosen: good}]\n";
    let columns = json!({ "prompt": "talk", "chosen": "good" });
    assert_eq!(json_of(&import(pairs).unwrap())["data"]["train"][0]["columns"], columns);
}

#[test]
fn splits_of_trls_sets_arrive() {
    let found = |lines: &str| json_of(&import(&format!("{TRL}{lines}")).unwrap());
    let named = found(
        "dataset_config: main\ndataset_train_split: part\ndataset_test_split: held\neval_strategy: steps\neval_steps: 5\n",
    );
    assert_eq!(named["data"]["train"], json!([{ "path": "hf://datasets/x/y/main/part" }]));
    assert_eq!(named["eval"], json!({ "path": "hf://datasets/x/y/main/held", "every_steps": 5 }));
    assert_eq!(found("eval_strategy: steps\neval_steps: 5\n")["eval"]["path"], json!("hf://datasets/x/y/test"));
    assert_eq!(found("dataset_test_split: held\n")["eval"], json!(null));
    let columns = |field: &str| found(&format!("dataset_text_field: {field}\n"))["data"]["train"][0]["columns"].clone();
    assert_eq!((columns("body"), columns("text")), (json!({ "text": "body" }), json!(null)));
}

/// TRL counts answers alone where either key asks for it, in whatever order they are read.
#[test]
fn one_key_of_trls_losses_does_not_undo_the_other() {
    let phase = |lines: &str| json_of(&import(&format!("{TRL}{lines}")).unwrap())["train"]["phase"].clone();
    assert_eq!(phase("assistant_only_loss: true\ncompletion_only_loss: false\n"), json!("sft"));
    assert_eq!(phase("assistant_only_loss: false\ncompletion_only_loss: true\n"), json!("sft"));
    assert_eq!(phase("assistant_only_loss: false\ncompletion_only_loss: false\n"), json!("pretrain"));
}

/// TRL writes its default divergence beside any loss.
#[test]
fn a_divergence_leaves_the_loss_as_it_is() {
    let of = |name: &str| {
        let lines = format!("{TRL}beta: 0.1\nloss_type: ipo\nf_divergence_type: {name}\n");
        let imported = import(&lines).unwrap();
        let is_missing = missing(&imported).contains(&"f_divergence_type");
        (json_of(&imported)["train"]["preference"]["loss"].clone(), is_missing)
    };
    assert_eq!(of("reverse_kl"), (json!("ipo"), false));
    assert_eq!(of("js_divergence"), (json!("ipo"), true));
}

#[test]
fn what_trains_something_else_is_refused() {
    for (text, part) in [
        ("base_model: a/b\nrl: grpo\n", "`rl: grpo` has no counterpart"),
        ("base_model: a/b\nadapter: loha\nlora_r: 8\n", "`adapter: loha` has no counterpart"),
        ("base_model: a/b\nreward_model: true\n", "`reward_model` has no counterpart"),
        ("base_model: a/b\ndiffusion: {noise_schedule: linear}\n", "`diffusion` has no counterpart"),
        ("model_name_or_path: a/b\nfinetuning_type: oft\ndataset: x\n", "finetuning_type `oft` has no counterpart"),
        ("model_name_or_path: a/b\nexport_dir: out\n", "it trains nothing: it has `export_dir`"),
        ("model_name_or_path: a/b\ninfer_backend: vllm\ntemplate: x\n", "`loongforge serve`"),
    ] {
        let error = import(text).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    import("base_model: a/b\nreward_model: false\n").unwrap();
}

#[test]
fn adapters_leave_the_image_tower_as_it_is() {
    let model = |name: &str, key: &str| {
        let imported = import(&format!("model_name_or_path: {name}\ndataset_name: x/y\n{key}")).unwrap();
        (
            json_of(&imported)["model"]["image_encoder"]["freeze"].clone(),
            says(&imported, "to layers of the image tower"),
        )
    };
    assert_eq!(model("Qwen/Qwen2.5-VL-3B-Instruct", "use_peft: true\n"), (json!(true), true));
    assert_eq!(model("Qwen/Qwen2.5-VL-3B-Instruct", ""), (json!(null), false));
    assert_eq!(model("Qwen/Qwen3-0.6B", "use_peft: true\n"), (json!(null), false));
}

/// Python's YAML reads `no` without quotes as `false`.
#[test]
fn a_strategy_of_no_is_read_however_it_is_written() {
    for word in ["no", "No", "\"no\"", "false", "off"] {
        let lines = format!("eval_strategy: {word}\nsave_strategy: {word}\n");
        let held = format!("{FACTORY}{lines}logging_strategy: {word}\nval_size: 0.1\neval_steps: 5\nsave_steps: 5\n");
        let held = import(&held).unwrap();
        let found = json_of(&held);
        // What is set aside is evaluated after the run, unless it has answers that are compared.
        assert_eq!((&found["eval"], &found["checkpoint"]), (&json!({ "every_steps": 0 }), &json!(null)), "{word}");
        assert!(missing(&held).is_empty(), "{word}: {:?}", missing(&held));
        let held = import(&format!("{AXOLOTL}{lines}val_set_size: 0.1\n")).unwrap();
        let found = json_of(&held);
        let expected = (&json!({ "every_steps": 0 }), &json!({ "keep_last": 4 }));
        assert_eq!((&found["eval"], &found["checkpoint"]), expected, "{word}");
        assert!(missing(&held).is_empty(), "{word}: {:?}", missing(&held));
        let pairs = import(&format!("{}{lines}val_size: 0.1\n", FACTORY.replace("sft", "dpo"))).unwrap();
        assert_eq!(json_of(&pairs)["eval"], json!({ "every_steps": 100 }), "{word}");
    }
}

#[test]
fn what_is_set_aside_is_evaluated_whatever_becomes_of_the_key_that_says_when() {
    for lines in [
        "eval_steps: 5\n",
        "eval_strategy: steps\neval_steps: 0.1\n",
        "eval_strategy: epoch\neval_steps: 5\nmax_steps: 9\n",
    ] {
        let held = json_of(&import(&format!("{FACTORY}val_size: 0.1\n{lines}")).unwrap());
        assert_eq!(held["eval"], json!({ "every_steps": 100 }), "{lines}");
    }
}

/// A run refuses to evaluate them only after its end.
#[test]
fn answers_that_are_compared_are_evaluated_during_the_run() {
    let factory = FACTORY.replace("sft", "dpo") + "eval_dataset: b\n";
    let axolotl = format!("{AXOLOTL}rl: dpo\ntest_datasets: [{{path: ./held.jsonl}}]\n");
    for (text, expected) in [
        (factory.clone(), 100),
        (format!("{factory}eval_strategy: no\n"), 100),
        (format!("{factory}eval_strategy: epoch\nmax_steps: 9\n"), 100),
        (format!("{factory}eval_strategy: steps\neval_steps: 5\n"), 5),
        (format!("{axolotl}max_steps: 9\n"), 100),
        (format!("{axolotl}eval_steps: 5\n"), 5),
    ] {
        let found = json_of(&import(&text).unwrap());
        assert_eq!(found["eval"]["every_steps"], json!(expected), "{text}");
    }
    let told = [factory.clone(), format!("{factory}eval_strategy: steps\neval_steps: 5\n")];
    assert_eq!(told.map(|text| says(&import(&text).unwrap(), "only during the run")), [true, false]);
    let alone = json_of(&import(&format!("{FACTORY}eval_dataset: b\n")).unwrap());
    assert_eq!(alone["eval"]["every_steps"], json!(null), "evaluated after the run");
}

#[test]
fn evaluations_without_samples_are_told() {
    let of = |lines: &str| {
        let text = format!("model_name_or_path: a/b\neval_strategy: steps\neval_steps: 5\n{lines}");
        says(&import(&text).unwrap(), "which a file has not")
    };
    let file = "dataset_name: data/pairs.jsonl\nbeta: 0.1\n";
    assert_eq!([of(file), of("dataset_name: x/y\nbeta: 0.1\n")], [true, false]);
    assert!(!of(&format!("{file}test_split_size: 0.1\n")));
}

#[test]
fn samples_of_any_length_are_told_where_nothing_bounds_them() {
    let of = |length: &str| {
        let imported = import(&format!("{TRL}{length}")).unwrap();
        (json_of(&imported)["data"]["pack"].clone(), says(&imported, "any length"))
    };
    let pack = |tokens: u64| json!({ "max_tokens": tokens, "too_long": "truncate" });
    assert_eq!((of(""), of("max_length: 64\n")), ((pack(1024), false), (pack(64), false)));
    for unlimited in ["max_length: -1\n", "max_length: null\n"] {
        assert_eq!(of(unlimited), (json!(null), true), "{unlimited}");
    }
    let line = "trl sft --model_name_or_path a/b --dataset_name x/y --max_length -1";
    let imported = import(line).unwrap();
    assert_eq!((missing(&imported), &json_of(&imported)["data"]["pack"]), (vec!["--max_length"], &json!(null)));
}
