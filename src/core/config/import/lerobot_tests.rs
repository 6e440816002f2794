//! Command lines in the manner of lerobot's documentation, and a `train_config.json` as it writes one.

use super::tests::{arrived, json_of, missing, settled};
use super::*;
use crate::config::load_text;
use serde_json::json;

const PI05: &str = r#"accelerate launch --multi_gpu --num_processes=2 $(which lerobot-train) \
    --dataset.repo_id=org/episodes --dataset.revision=v3.0 --policy.type=pi05 --output_dir=./outputs/pi05_training \
    --job_name=pi05_cups --policy.repo_id=me/pi05 --policy.pretrained_path=lerobot/pi05_base --policy.compile_model=true \
    --policy.gradient_checkpointing=true --wandb.enable=true --policy.dtype=bfloat16 --policy.freeze_vision_encoder=false \
    --policy.train_expert_only=true --steps=3000 --policy.device=cuda --batch_size=32 --save_freq 1000 \
    --policy.normalization_mapping='{"ACTION": "MEAN_STD", "STATE": "MEAN_STD", "VISUAL": "IDENTITY"}' \
    --policy.use_relative_actions=true --policy.relative_exclude_joints='["gripper"]' \
    --rename_map='{"observation.images.front": "observation.images.base_0_rgb"}' --env_eval_freq=0 --some.new=1
"#;

#[test]
fn a_command_line_arrives() {
    let imported = import(PI05).unwrap();
    let config = load_text(&imported.yaml).unwrap_or_else(|report| panic!("{}\n{report}", imported.yaml)).config;
    let (train, policy) = (&config.train, &config.policy);
    assert_eq!((imported.from, config.run.name.as_str(), config.run.seed), ("lerobot", "pi05_cups", 1000));
    assert_eq!((train.steps, train.global_batch_size), (Some(3000), 64));
    // Its preset, shortened as lerobot shortens it.
    assert_eq!((train.lr, train.min_lr, train.warmup_steps, train.clip_grad), (2.5e-5, 2.5e-6, 100, 1.0));
    assert_eq!((train.optimizer.weight_decay, train.optimizer.betas), (0.01, [0.9, 0.95]));
    assert_eq!((config.checkpoint.every_steps, config.log.every_steps), (1000, 200));
    assert_eq!((policy.relative_actions, policy.exclude.clone()), (Some(true), Some(vec!["gripper".to_owned()])));
    assert_eq!(policy.cameras["observation.images.front"], "observation.images.base_0_rgb");
    let found = json_of(&imported);
    assert_eq!(found["data"]["train"], json!([{ "path": "hf://datasets/org/episodes@v3.0" }]));
    assert_eq!(found["model"]["load"], json!("lerobot/pi05_base"));
    assert_eq!(found["model"]["overrides"], json!({ "freeze_vision_encoder": false, "train_expert_only": true }));
    assert_eq!(
        (&found["train"]["precision"], &found["policy"]["action_normalization"]),
        (&json!("bf16"), &json!("mean_std"))
    );
    assert_eq!(
        (&found["pools"]["foundation"]["replicas"], &found["log"]["wandb"]["project"]),
        (&json!(2), &json!("lerobot"))
    );
    assert_eq!(missing(&imported), ["--policy.repo_id", "--some.new"]);
    assert!(settled(&imported).contains(&"--multi_gpu") && arrived(&imported).contains(&"--num_processes"));
    let words: Vec<String> = PI05
        .replace("\\\n", "")
        .replace("$(which lerobot-train)", "/opt/env/bin/lerobot-train")
        .replace('\'', "")
        .replace("{\"", "{")
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    assert_eq!(import_words(&words[..14]).unwrap().from, "lerobot");
}

/// Which of the two was meant is not known.
#[test]
fn a_name_for_two_features_has_no_counterpart() {
    let read = |names: &str| {
        let line = format!("lerobot-train --dataset.root=a --policy.path=lerobot/pi05_base --rename_map='{names}'");
        import(&line).unwrap()
    };
    let twice = read(r#"{"joints": "observation.state", "qpos": "observation.state"}"#);
    assert_eq!((missing(&twice), &json_of(&twice)["policy"]["state"]), (vec!["--rename_map"], &json!(null)));
    let once = read(r#"{"joints": "observation.state", "control": "action"}"#);
    let policy = &json_of(&once)["policy"];
    assert_eq!((missing(&once), &policy["state"]), (Vec::new(), &json!("joints")));
}

#[test]
fn rates_are_those_of_the_policy() {
    let train = |options: &str| json_of(&import(&format!("lerobot-train --dataset.root=data/set {options}")).unwrap());
    let smol = train("--policy.path=lerobot/smolvla_base --policy.optimizer_lr=5e-5 --optimizer.lr=3");
    assert_eq!(
        (&smol["train"]["lr"], &smol["train"]["clip_grad"], &smol["train"]["steps"]),
        (&json!(5e-5), &json!(10.0), &json!(100_000))
    );
    // The end of the decay keeps its share of the rate.
    assert_eq!((&smol["train"]["warmup_steps"], smol["train"]["min_lr"].as_f64()), (&json!(1000), Some(2.5e-6)));
    assert_eq!(
        (&smol["data"]["train"], &smol["train"]["global_batch_size"]),
        (&json!([{ "path": "data/set" }]), &json!(8))
    );
    let xvla = train("--policy.path=lerobot/xvla-base --policy.soft_prompt=1");
    assert_eq!(
        (&xvla["pools"]["encoder"]["lr"], &xvla["model"]["foundation"]["lr_ratios"]),
        (&json!(1e-5), &json!({ "*vlm.*": 0.1 }))
    );
    let groot =
        train("--policy.type=groot --policy.base_model_path=nvidia/GR00T-N1.7-3B --policy.embodiment_tag=my_arm");
    assert_eq!((&groot["train"]["warmup_steps"], &groot["train"]["schedule"]), (&json!(500), &json!("cosine")));
    assert_eq!(groot["policy"]["embodiments"], json!({ "my_arm": { "sets": ["data/set"] } }));
    let mapped = "--policy.type=groot --policy.base_model_path=nvidia/GR00T-N1.7-3B \
        --policy.normalization_mapping='{\"STATE\": \"MEAN_STD\"}'";
    assert_eq!(train(mapped)["policy"]["state_normalization"], json!(null), "its processor takes bounds");
    assert_eq!((&groot["train"]["precision"], &xvla["train"]["precision"]), (&json!("bf16"), &json!("float32")));
    let frozen = train("--policy.path=lerobot/xvla-base --policy.freeze_vision_encoder=true");
    assert_eq!(frozen["pools"]["encoder"], json!(null));
    let own = "--use_policy_training_preset=false --optimizer.type=adamw --optimizer.lr=1e-3 --scheduler.type=diffuser \
        --scheduler.name=linear --scheduler.num_warmup_steps=7";
    let own = train(&format!("--policy.path=lerobot/pi0_base {own}"));
    assert_eq!(
        (&own["train"]["lr"], &own["train"]["schedule"], &own["train"]["warmup_steps"]),
        (&json!(1e-3), &json!("linear"), &json!(7))
    );
    let nameless =
        import("lerobot-train --dataset.root=a --policy.path=me/cups --policy.scheduler_decay_lr=1e-6").unwrap();
    assert!(nameless.notes.iter().any(|note| note.contains("set train.lr")), "{:?}", nameless.notes);
    assert_eq!(missing(&nameless), ["--policy.scheduler_decay_lr"]);
}

#[test]
fn adapters_arrive_with_the_maps_of_their_policy() {
    let lora = |options: &str| {
        let line = format!("lerobot-train --dataset.root=a --policy.path=lerobot/smolvla_base {options}");
        json_of(&import(&line).unwrap())["model"]["foundation"]["lora"].clone()
    };
    let own = lora("--peft.method_type=LORA --peft.r=64");
    assert_eq!(
        (&own["r"], &own["alpha"], &own["target_modules"][0]),
        (&json!(64), &json!(8.0), &json!("*.lm_expert.*.q_proj"))
    );
    let named = lora(
        "--peft.lora_alpha=32 --peft.target_modules=\"['q_proj','v_proj']\" --peft.full_training_modules=[state_proj]",
    );
    assert_eq!((&named["r"], &named["alpha"]), (&json!(16), &json!(32.0)));
    assert_eq!(
        (&named["target_modules"], &named["modules_to_save"]),
        (&json!(["q_proj", "v_proj"]), &json!(["state_proj"]))
    );
    assert_eq!(lora(""), json!(null));
    let all = import("lerobot-train --dataset.root=a --policy.path=lerobot/pi05_base --peft.r=8").unwrap();
    let model = &json_of(&all)["model"];
    assert_eq!((&model["image_encoder"]["freeze"], &model["image_projector"]["freeze"]), (&json!(true), &json!(true)));
}

#[test]
fn a_train_config_arrives() {
    let config = json!({
        "dataset": { "repo_id": "org/episodes", "root": null, "episodes": null, "image_transforms": {
            "enable": false, "max_num_transforms": 3, "random_order": false, "tfs": { "brightness": { "weight": 1.0 } } },
            "revision": null, "use_imagenet_stats": true, "video_backend": "torchcodec", "streaming": false, "eval_split": 0.0 },
        "env": null,
        "policy": { "type": "smolvla", "n_obs_steps": 1, "input_features": { "observation.state": { "type": "STATE", "shape": [6] } },
            "output_features": {}, "device": "cuda", "use_amp": false, "push_to_hub": true, "repo_id": null, "pretrained_path":
            "lerobot/smolvla_base", "chunk_size": 30, "n_action_steps": 50, "normalization_mapping": { "VISUAL": "IDENTITY", "STATE":
            "MEAN_STD", "ACTION": "MEAN_STD" }, "max_state_dim": 32, "attention_mode": "cross_attn", "optimizer_lr": 0.0001,
            "scheduler_warmup_steps": 1000, "train_expert_only": true, "rtc_config": null },
        "reward_model": null, "output_dir": "outputs/train/smol", "job_name": "smolvla", "resume": false, "seed": 7, "num_workers": 4,
        "batch_size": 16, "steps": 20000, "env_eval_freq": 20000, "log_freq": 50, "save_checkpoint": true, "save_freq": 0,
        "use_policy_training_preset": true, "tolerance_s": 0.0001,
        "optimizer": { "type": "adamw", "lr": 0.0002, "weight_decay": 1e-10, "grad_clip_norm": 10.0, "betas": [0.9, 0.95], "eps": 1e-8 },
        "scheduler": { "type": "cosine_decay_with_warmup", "num_warmup_steps": 1000, "num_decay_steps": 30000, "peak_lr": 0.0002,
            "decay_lr": 2.5e-6 },
        "eval": { "n_episodes": 50, "batch_size": 50 }, "wandb": { "enable": false, "project": "lerobot", "mode": null },
        "peft": null, "ema": { "enable": true, "decay": 0.99, "inv_gamma": 1.0 }, "rename_map": {},
        "accelerator": { "mixed_precision": "bf16", "gradient_accumulation": { "steps": 2 }, "ddp": { "static_graph": false } },
        "parallelism": { "dp_replicate": 1, "dp_shard": 4, "cfg_parallel": 1 }, "some_new_key": 3
    });
    let imported = import(&serde_json::to_string_pretty(&config).unwrap()).unwrap();
    let ours = load_text(&imported.yaml).unwrap_or_else(|report| panic!("{}\n{report}", imported.yaml)).config;
    let train = &ours.train;
    assert_eq!((imported.from, train.lr, train.warmup_steps, train.ema), ("lerobot", 2e-4, 666, Some(0.99)));
    assert_eq!((train.global_batch_size, ours.pools.foundation.zero, ours.checkpoint.every_steps), (128, 3, 0));
    let found = json_of(&imported);
    let overrides = json!({ "chunk_size": 30, "max_state_dim": 32, "n_action_steps": 50, "train_expert_only": true });
    assert_eq!((&found["model"]["overrides"], &found["train"]["precision"]), (&overrides, &json!("bf16")));
    assert_eq!(missing(&imported), ["some_new_key"]);
    // Each key of the file, sections and all.
    for key in [
        "dataset.image_transforms.tfs.brightness.weight",
        "policy.attention_mode",
        "scheduler.decay_lr",
        "policy.optimizer_lr",
    ] {
        assert!(imported.keys.iter().any(|it| it.key == key), "{key}: {:?}", imported.keys);
    }
}

#[test]
fn chosen_and_held_out_episodes_arrive() {
    let imported = |options: &str| {
        import(&format!("lerobot-train --dataset.repo_id=org/episodes --policy.path=lerobot/pi05_base {options}"))
            .unwrap()
    };
    let episodes = |options: &str| json_of(&imported(options))["data"]["train"][0]["episodes"].clone();
    assert_eq!(episodes("--dataset.episodes=[0,1,5]"), json!(["0-1", 5]));
    assert_eq!(episodes("--dataset.episodes='[7, 3, 4, 5]' --dataset.exclude_episodes=[4,9]"), json!([3, 5, 7]));
    assert_eq!(episodes("--dataset.exclude_episodes=[0,3,4,7]"), json!(["1-2", "5-6", "8-"]));
    for options in ["", "--dataset.episodes=null", "--dataset.exclude_episodes=[]"] {
        assert_eq!(episodes(options), json!(null), "{options}");
    }
    let config = load_text(&imported("--dataset.episodes=[0,1,5] --dataset.eval_split=0.1 --eval_steps=500").yaml);
    let config = config.unwrap_or_else(|report| panic!("{report}")).config;
    let texts: Vec<String> = config.data.train[0].episodes.iter().flatten().map(ToString::to_string).collect();
    assert_eq!((texts, config.data.val_size), (vec!["0-1".to_owned(), "5".to_owned()], 0.1));
    let eval = config.eval.unwrap();
    assert_eq!((eval.every_steps, eval.save_best, eval.max_samples), (500, false, None));
    let all = imported("--dataset.episodes=[2] --dataset.eval_split=0.2 --eval_steps=50 --max_eval_samples=80");
    assert!(missing(&all).is_empty(), "{:?}", all.keys);
    assert_eq!(json_of(&all)["eval"], json!({ "every_steps": 50, "max_samples": 80, "save_best": false }));
    for (options, key) in [
        ("--dataset.episodes=[0,-1]", "--dataset.episodes"),
        ("--dataset.episodes=first", "--dataset.episodes"),
        ("--dataset.episodes=[]", "--dataset.episodes"),
        ("--eval_steps=500", "--eval_steps"),
    ] {
        assert_eq!(missing(&imported(options)), [key], "{options}");
    }
}

#[test]
fn other_policies_and_bare_files_are_refused_by_name() {
    for (line, part) in [
        ("lerobot-train --policy.type=act --dataset.repo_id=a/b", "policy `act` has no counterpart"),
        ("python -m lerobot.scripts.lerobot_train --dataset.repo_id=a/b --reward_model.type=sarm", "reward models"),
        (
            "lerobot-train --config_path=out/train_config.json --resume=true",
            "`loongforge import out/train_config.json`",
        ),
        ("lerobot-record --policy.path=a/pi05 --dataset.repo_id=a/b", "it contains no training command"),
    ] {
        let error = import(line).unwrap_err().to_string();
        assert!(error.contains(part), "{line}: {error}");
    }
}
