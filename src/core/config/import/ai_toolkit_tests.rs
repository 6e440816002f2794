//! Configs in the manner of ai-toolkit's examples, and what comes of them.

use super::tests::{arrived, json_of, missing, settled};
use super::*;
use crate::config::load_text;
use serde_json::json;

const WAN: &str = r#"---
job: extension
config:
  name: "cats"
  process:
    - type: 'sd_trainer'
      training_folder: "output"
      device: cuda:0
      trigger_word: "p3r5on"
      network: { type: "lora", linear: 32, linear_alpha: 16 }
      save: { dtype: float16, save_every: 250, max_step_saves_to_keep: 4, push_to_hub: false }
      datasets:
        - folder_path: "DIR"
          caption_ext: "txt"
          caption_dropout_rate: 0.05
          num_frames: 41
          resolution: [ 256, 512 ]
        - folder_path: "DIR"
          default_caption: "a cat"
          num_repeats: 2
          resolution: 512
          shuffle_tokens: true
      train:
        batch_size: 2
        steps: 2000
        gradient_accumulation: 3
        train_unet: true
        train_text_encoder: false
        gradient_checkpointing: true
        noise_scheduler: "flowmatch"
        timestep_type: 'linear'
        optimizer: "adamw8bit"
        lr: 1e-4
        optimizer_params: { weight_decay: 1e-4 }
        ema_config: { use_ema: true, ema_decay: 0.99 }
        dtype: bf16
        switch_boundary_every: 10
        cache_text_embeddings: true
      model:
        name_or_path: "ai-toolkit/Wan2.2-T2V-A14B-Diffusers-bf16"
        arch: 'wan22_14b:t2v'
        quantize: true
        quantize_te: true
        qtype_te: "qfloat8"
        low_vram: false
        model_kwargs: { train_high_noise: true, train_low_noise: false }
      sample:
        sample_every: 250
        prompts:
          - "woman playing the guitar"
meta:
  name: "[name]"
"#;

fn of(text: &str) -> Imported {
    import(text).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_lora_of_ai_toolkit_arrives() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.gif"), "").unwrap();
    let imported = of(&WAN.replace("DIR", &dir.path().display().to_string()));
    let config = load_text(&imported.yaml).unwrap_or_else(|report| panic!("{}\n{report}", imported.yaml)).config;
    assert_eq!((imported.from, config.run.name.as_str()), ("ai-toolkit", "cats"));
    let found = json_of(&imported);
    let foundation = &found["model"]["foundation"];
    assert_eq!(found["model"]["load"], json!("ai-toolkit/Wan2.2-T2V-A14B-Diffusers-bf16"));
    assert_eq!((&foundation["lora"]["r"], &foundation["lora"]["alpha"]), (&json!(32), &json!(16)));
    assert_eq!((&foundation["frozen_precision"], &foundation["recompute"]), (&json!("fp8_e4m3fn"), &json!("all")));
    assert_eq!(found["model"]["text_encoder"]["frozen_precision"], json!("fp8_e4m3fn"));
    assert_eq!(found["model"]["experts"], json!("high"));
    let train = &config.train;
    assert_eq!((train.global_batch_size, train.lr, train.ema), (6, 1e-4, Some(0.99)));
    assert_eq!((train.optimizer.weight_decay, train.clip_grad), (1e-4, 1.0));
    assert_eq!(found["train"]["sigma"], json!({ "density": "uniform" }));
    assert_eq!((&found["train"]["steps"], &found["train"]["precision"]), (&json!(2000), &json!("bf16")));
    assert_eq!(found["data"]["video"], json!({ "area": "512x512", "frames": 41, "take": "uniform" }));
    assert_eq!((&found["data"]["mix"], &found["data"]["caption_dropout"]), (&json!("samples"), &json!(0.05)));
    let path = dir.path().display().to_string();
    let sets = json!([{ "path": path, "area": "256x256" }, { "path": path }, { "path": path, "caption": "a cat" }]);
    assert_eq!((&found["data"]["train"], &found["data"]["image"]["area"]), (&sets, &json!("512x512")));
    assert_eq!(found["data"]["pack"]["max_tokens"], json!(11 * 32 * 32));
    assert_eq!(found["checkpoint"], json!({ "every_steps": 250, "keep_last": 4 }));
    assert_eq!(
        missing(&imported),
        [
            "datasets.1.num_repeats",
            "datasets.1.shuffle_tokens",
            "sample.prompts",
            "sample.sample_every",
            "trigger_word"
        ]
    );
    for key in ["save.dtype", "train.noise_scheduler", "save.push_to_hub", "meta.name", "train.switch_boundary_every"] {
        assert!(settled(&imported).contains(&key), "{key}: {:?}", imported.keys);
    }
    for key in ["model.quantize", "network.type", "datasets.0.resolution", "train.dtype", "train.lr"] {
        assert!(arrived(&imported).contains(&key), "{key}: {:?}", imported.keys);
    }
}

#[test]
fn pictures_have_no_keys_of_clips_and_other_models_are_refused_by_name() {
    let text = WAN.replace("wan22_14b:t2v", "qwen_image").replace("num_frames: 41", "num_frames: 1");
    let found = json_of(&of(&text));
    assert_eq!((&found["data"]["video"], &found["data"]["image"]["area"]), (&Value::Null, &json!("512x512")));
    assert_eq!(found["data"]["pack"]["max_tokens"], json!(32 * 32));
    for (from, to, part) in [
        ("wan22_14b:t2v", "flux", "model `flux` has no counterpart"),
        ("type: \"lora\"", "type: \"lokr\"", "network `lokr` has no counterpart"),
        ("sd_trainer", "slider", "process `slider` has no counterpart"),
    ] {
        let error = import(&WAN.replace(from, to)).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    // A set without a resolution has their default, and the largest side is that of the config.
    let text = WAN.replace("resolution: [ 256, 512 ]", "bucket_tolerance: 64");
    let sides = json_of(&of(&text.replace("resolution: 512", "resolution: 768")));
    let areas = [0, 1].map(|at| sides["data"]["train"][at]["area"].clone());
    assert_eq!((areas, &sides["data"]["image"]["area"]), ([json!("512x512"), Value::Null], &json!("768x768")));
    // Weights of three bits have no counterpart.
    let imported = of(&WAN.replace("quantize: true\n", "quantize: true\n        qtype: uint3|a/b.safetensors\n"));
    assert!(missing(&imported).contains(&"model.qtype"), "{:?}", imported.keys);
    assert_eq!(json_of(&imported)["model"]["foundation"]["frozen_precision"], Value::Null);
}
