//! Small GR00Ts, N1.7 and N1.6, on demonstrations of Pads: they learn the same whoever encodes, go on where they stopped, and act.

use crate::fastwam::text;
use crate::fixture::{loss_bits, run};
use crate::resume::hashes;
use loongforge::core::config;
use loongforge::core::data::digits;
use loongforge::core::robot::pads::{PadsSet, Part, Scene, SceneLayout, compose_pads, instruction, picture};
use loongforge::core::robot::{Moment, Observation};
use loongforge::policy::{Choice, Purpose, Wanted, open};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const SHORT: [&str; 8] = [
    "train.steps=4",
    "train.warmup_steps=1",
    "checkpoint.every_steps=2",
    "train.global_batch_size=2",
    "run.deterministic=true",
    "log.tensorboard=false",
    "pools.encoder.threads=1",
    "pools.foundation.threads=1",
];

/// A template that numbers pictures as Eagle's does: `<image-1>` is the first.
const TEMPLATE: &str = "{% set count = namespace(value=0) %}{% for message in messages %}<|im_start|>{{ message['role'] }}\n\
                        {% for part in message['content'] %}{% if part['type'] == 'image' %}\
                        {% set count.value = count.value + 1 %}<image-{{ count.value }}>\
                        {% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}";

/// Demonstrations, and a model folder with the quick start's tokenizer and a config of GR00T.
fn made(model_type: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    compose_pads(&dir.path().join("data"), &PadsSet { seed: 1, num_episodes: 4 }).unwrap();
    let folder = dir.path().join("data/model");
    let read = |name: &str| -> Value { serde_json::from_slice(&fs::read(folder.join(name)).unwrap()).unwrap() };
    let pads = read("config.json");
    digits::write_model(&folder, &digits::MODEL).unwrap();
    // Pictures of N1.7 have 256 rows: patches that are not too many.
    let (mut qwen, mut pictures) = (read("config.json"), read("preprocessor_config.json"));
    qwen["vision_config"]["patch_size"] = 16.into();
    pictures["patch_size"] = 16.into();
    fs::write(folder.join("preprocessor_config.json"), pictures.to_string()).unwrap();
    let width = &qwen["text_config"]["hidden_size"];
    let mut config = json!({
        "model_type": model_type, "backbone_model_type": "qwen", "model_name": "tiny", "select_layer": 2, "tune_llm": true,
        "tune_visual": true, "backbone_embedding_dim": width, "max_state_dim": 4, "max_action_dim": 4, "action_horizon": 8,
        "hidden_size": 16, "input_embedding_dim": 24, "max_seq_len": 16, "max_num_embodiments": 12,
        "diffusion_model_cfg": {"positional_embeddings": null, "num_layers": 3, "num_attention_heads": 2,
            "attention_head_dim": 12, "norm_type": "ada_norm", "dropout": 0.1, "output_dim": 16,
            "interleave_self_attention": true},
        "vl_self_attention_cfg": {"positional_embeddings": null, "num_layers": 0},
        "backbone_config": qwen, "input_features": pads["input_features"], "output_features": pads["output_features"],
    });
    if model_type == "Gr00tN1d6" {
        let keys = config.as_object_mut().unwrap();
        // As published: cameras and widths are the data's.
        for key in ["vl_self_attention_cfg", "input_features", "output_features"] {
            keys.remove(key);
        }
        keys.insert("backbone_model_type".into(), "eagle".into());
        keys.insert("state_dropout_prob".into(), 0.3.into());
        keys.insert("state_additive_noise_scale".into(), 0.1.into());
        keys.insert("shortest_image_edge".into(), 32.into());
        let mut text = qwen["text_config"].clone();
        text["model_type"] = "qwen3".into();
        text["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 100.0});
        let vision = json!({
            "model_type": "siglip2_vision_model", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_patches": 16, "patch_size": 4, "use_rope": false, "use_windows_attn": false,
        });
        let backbone = json!({
            "model_type": "eagle_3_vl", "image_token_index": qwen["image_token_id"], "text_config": text,
            "vision_config": vision,
        });
        keys.insert("backbone_config".into(), backbone);
        fs::write(folder.join("chat_template.jinja"), TEMPLATE).unwrap();
        fs::write(folder.join("preprocessor_config.json"), "{}").unwrap();
    }
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    dir
}

/// Losses of a run whose checkpoints go to `to`.
fn trained(dir: &Path, to: &str, overrides: &[&str]) -> Vec<u64> {
    let to = format!("checkpoint.dir={}/{to}", dir.display());
    let overrides = SHORT.iter().chain(overrides).copied().chain([to.as_str()]);
    let overrides: Vec<String> = overrides.map(str::to_owned).collect();
    let loaded = config::load_text_with(&text(dir), &overrides).unwrap_or_else(|report| panic!("{report}"));
    loss_bits(&run(loaded, None).0)
}

#[test]
fn both_versions_learn_the_same_with_any_number_of_encoders_resume_and_act() {
    for model_type in ["Gr00tN1d7", "Gr00tN1d6"] {
        let dir = made(model_type);
        let one = trained(dir.path(), "run/checkpoints", &["pools.encoder.replicas=1"]);
        assert_eq!(one.len(), 4, "{model_type}");
        assert_eq!(one, trained(dir.path(), "three", &["pools.encoder.replicas=3"]), "{model_type}");

        let path = dir.path().join("groot.yaml");
        fs::write(&path, text(dir.path())).unwrap();
        let weights = |to: &str| hashes(&dir.path().join(format!("{to}/checkpoints/step-00000004")));
        let program = |to: &str, more: &[&str]| {
            let mut program = Command::new(env!("CARGO_BIN_EXE_loongforge"));
            program.arg("run").arg(&path).args(SHORT).arg("security.sandbox=off").args(more);
            let output = program.arg(format!("run.dir={}/{to}", dir.path().display())).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{model_type} {to}: {said}");
        };
        program("whole", &["train.schedule=constant"]);
        program("begun", &["train.schedule=constant", "train.steps=2"]);
        program("begun", &["train.schedule=constant", "--resume"]);
        assert!(!weights("whole").is_empty() && weights("whole") == weights("begun"), "{model_type}");

        let wanted = Wanted {
            embodiment: None,
            checkpoint: Some(dir.path().join("whole").display().to_string()),
            policy: Choice::Trained,
            episodes: None,
            episode: None,
            execute: None,
            seed: Some(1),
            device: Some(config::Device::Cpu),
        };
        let mut policy = open(&wanted, Purpose::Judging).unwrap();
        let scene = Scene::begin(SceneLayout::draw(1, Part::HeldOut, 0));
        let images = vec![(policy.spec().cameras[0].clone(), picture(&scene))];
        let seen = Observation { images, state: scene.state(), prompt: instruction(0), begun: Vec::new() };
        let actions = policy.act(&seen, Moment::default()).unwrap();
        assert_eq!((actions.num_steps(), actions.width), (8, 2), "{model_type}");
        assert_eq!(policy.act(&seen, Moment::default()).unwrap(), actions);
    }
}
