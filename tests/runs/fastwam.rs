//! A small FastWAM on demonstrations of Pads: it learns what the camera will see beside what it does, the same whoever encodes, goes on
//! where it stopped, and acts.

use crate::fixture::{loss_bits, opened_policy, run};
use crate::resume::{hashes, resume};
use loongforge::core::config;
use loongforge::core::robot::pads::{PadsSet, Part, Scene, SceneLayout, compose_pads, instruction, picture};
use loongforge::core::robot::{Moment, Observation};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const SHORT: [&str; 9] = [
    "train.steps=4",
    "train.warmup_steps=1",
    "checkpoint.every_steps=2",
    "train.global_batch_size=8",
    "run.deterministic=true",
    "log.tensorboard=false",
    "policy.noise_draws=1",
    "pools.encoder.threads=1",
    "pools.foundation.threads=1",
];

/// Demonstrations, and a model folder with the tokenizer of the task and FastWAM's config.
pub fn made() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    compose_pads(&dir.path().join("data"), &PadsSet { seed: 1, num_episodes: 6 }).unwrap();
    let path = dir.path().join("data/model/config.json");
    let pads: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let cameras = pads["input_features"].as_object().unwrap().keys().filter(|key| key.contains("image"));
    let visual = json!({"type": "VISUAL", "shape": [3, 64, 64]});
    let mut inputs: serde_json::Map<String, Value> = cameras.map(|key| (key.clone(), visual.clone())).collect();
    assert_eq!(inputs.len(), 1);
    inputs.insert("observation.state".into(), json!({"type": "STATE", "shape": [2]}));
    let heads =
        json!({"num_heads": 2, "attn_head_dim": 12, "num_layers": 2, "text_dim": 12, "freq_dim": 16, "eps": 1e-6});
    let with = |more: Value| {
        let mut all = heads.as_object().unwrap().clone();
        all.extend(more.as_object().unwrap().clone());
        Value::Object(all)
    };
    let config = json!({
        "type": "fastwam", "n_obs_steps": 1, "action_dim": 2, "proprio_dim": 2, "action_horizon": 8, "n_action_steps": 8,
        "num_video_frames": 9, "action_video_freq_ratio": 2, "image_size": [64, 64], "tokenizer_max_len": 24,
        "num_inference_steps": 4, "torch_dtype": "float32", "prompt_template": "{task}", "freeze_video_expert": false,
        "toggle_action_dimensions": [],
        "video_dit_config": with(json!({"hidden_dim": 24, "in_dim": 4, "out_dim": 4, "ffn_dim": 32, "patch_size": [1, 2, 2],
            "seperated_timestep": true, "video_attention_mask_mode": "first_frame_causal"})),
        "action_dit_config": with(json!({"hidden_dim": 16, "ffn_dim": 24, "action_dim": 2})),
        "input_features": inputs, "output_features": {"action": {"type": "ACTION", "shape": [2]}},
        "sizes": {
            "vae": {"_class_name": "AutoencoderKLWan", "base_dim": 4, "decoder_base_dim": 4, "z_dim": 4, "dim_mult": [1, 1, 1, 1],
                "num_res_blocks": 1, "temperal_downsample": [false, true, true], "patch_size": 2, "in_channels": 12,
                "out_channels": 12, "is_residual": true, "latents_mean": [0.0, 0.0, 0.0, 0.0],
                "latents_std": [1.0, 1.0, 1.0, 1.0]},
            "text_encoder": {"model_type": "umt5", "vocab_size": pads["sizes"]["vocab_size"], "d_model": 12, "d_kv": 6, "d_ff": 16,
                "num_layers": 1, "num_heads": 2},
        },
    });
    fs::write(&path, config.to_string()).unwrap();
    dir
}

pub fn text(dir: &Path) -> String {
    let root = dir.display().to_string();
    let text = include_str!("../../configs/pads_policy.yaml").replace("runs/pads_policy/data", &format!("{root}/data"));
    text.replace("name: pads_policy", &format!("name: pads_policy\n  dir: {root}/run"))
}

/// Losses of a run, from the second step's checkpoint on where it is resumed; its own go to `to`.
fn trained(dir: &Path, to: &str, overrides: &[&str], is_resumed: bool) -> Vec<u64> {
    let to = format!("checkpoint.dir={}/{to}", dir.display());
    let overrides = SHORT.iter().chain(overrides).copied().chain([to.as_str()]);
    let overrides: Vec<String> = overrides.map(str::to_owned).collect();
    let loaded = config::load_text_with(&text(dir), &overrides).unwrap_or_else(|report| panic!("{report}"));
    let from = is_resumed.then(|| resume(dir.join("run/checkpoints/step-00000002")));
    loss_bits(&run(loaded, from).0)
}

#[test]
fn a_world_action_model_learns_the_same_with_any_number_of_encoders_resumes_and_acts() {
    let dir = made();
    let eval =
        format!("eval={{path: {}/data/train, every_steps: 4, actions: 4, max_samples: 4}}", dir.path().display());
    let with = |to: &str, more: &[&str], resumed| trained(dir.path(), to, more, resumed);
    let one = with("run/checkpoints", &["pools.encoder.replicas=1", &eval], false);
    assert_eq!(one.len(), 4);
    assert_eq!(one, with("three", &["pools.encoder.replicas=3"], false));
    assert_eq!(one[2..], with("resumed", &["pools.encoder.replicas=2"], true));
    assert_ne!(one, with("frozen", &["model.overrides={freeze_video_expert: true}"], false));
    let drawn = |to: &str, replicas: &str| with(to, &["policy.noise_draws=2", replicas], false);
    let twice = drawn("drawn", "pools.encoder.replicas=1");
    assert!(twice == drawn("drawn-three", "pools.encoder.replicas=3") && twice[0] != one[0], "{twice:?}");
    let adapted = with("lora", &["model.foundation.lora={r: 2, alpha: 4}"], false);
    assert!(adapted[0] == one[0] && adapted[3] != one[3], "adapters start at nothing, and learn");
    let of_adapters = |name: &str| -> Value {
        serde_json::from_slice(&fs::read(dir.path().join("lora/step-00000004").join(name)).unwrap()).unwrap()
    };
    // As lerobot needs it to add them to their base.
    assert_eq!(of_adapters("config.json")["use_peft"], json!(true));
    assert_eq!(of_adapters("adapter_config.json")["task_type"], Value::Null);

    // A checkpoint has the layout of lerobot, and the frozen networks beside it as Diffusers has them.
    let folder = dir.path().join("run/checkpoints/step-00000004");
    for name in ["model.safetensors", "policy_preprocessor.json", "text_encoder/model.safetensors"] {
        assert!(folder.join(name).is_file(), "{name}");
    }
    assert!(folder.join("vae/diffusion_pytorch_model.safetensors").is_file());
    let saved: Value = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
    assert_eq!(
        (&saved["type"], &saved["dtype"], &saved["torch_dtype"]),
        (&json!("fastwam"), &Value::Null, &json!("float32"))
    );

    let mut policy = opened_policy(&folder);
    let scene = Scene::begin(SceneLayout::draw(1, Part::HeldOut, 0));
    let images = vec![(policy.spec().cameras[0].clone(), picture(&scene))];
    let seen = Observation { images, state: scene.state(), prompt: instruction(0), begun: Vec::new() };
    let actions = policy.act(&seen, Moment::default()).unwrap();
    assert_eq!((actions.num_steps(), actions.width), (8, 2));
    assert_eq!(policy.act(&seen, Moment::default()).unwrap(), actions);
    assert_ne!(policy.act(&seen, Moment { episode: 0, request: 1 }).unwrap(), actions, "other noise");
    let blind = Observation { images: Vec::new(), ..seen };
    assert!(policy.act(&blind, Moment::default()).unwrap_err().contains("which FastWAM needs"));
}

#[test]
fn a_killed_run_goes_on_to_the_same_bits() {
    let dir = made();
    a_kill_changes_no_bit(dir.path(), &text(dir.path()), &SHORT);
}

/// A run whose process is killed between two checkpoints, and that goes on from the last, ends with the bits of one that was left alone.
/// `text` is its config, and `own` are overrides.
pub fn a_kill_changes_no_bit(dir: &Path, text: &str, own: &[&str]) {
    let path = dir.join("run.yaml");
    fs::write(&path, text).unwrap();
    let program = |to: &str, more: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_loongforge"));
        program.arg("run").arg(&path).args(own).args(["train.steps=12", "checkpoint.every_steps=4"]).args(more);
        program.arg("security.sandbox=off").arg(format!("run.dir={}/{to}", dir.display()));
        program.stderr(std::process::Stdio::null());
        program
    };
    let checkpoint = |to: &str, step: u64| dir.join(format!("{to}/checkpoints/step-{step:08}"));
    assert!(program("whole", &[]).status().unwrap().success());
    // It goes on until it is killed.
    let slow = "foundation/0@before_commit:5-12=slow";
    let mut killed = program("killed", &[]).env("LOONGFORGE_FAULTS", slow).spawn().unwrap();
    let begun = std::time::Instant::now();
    while !checkpoint("killed", 4).exists() {
        assert!(begun.elapsed().as_secs() < 120, "there is no checkpoint");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(!checkpoint("killed", 12).exists(), "it ended before it was killed");
    assert!(program("killed", &["--resume"]).status().unwrap().success());
    let whole = hashes(&checkpoint("whole", 12));
    assert!(whole.len() > 1, "{whole:?}");
    assert_eq!(hashes(&checkpoint("killed", 12)), whole);
}

#[test]
fn what_it_cannot_be_trained_with_is_refused_by_check() {
    let dir = made();
    let path = dir.path().join("fastwam.yaml");
    fs::write(&path, text(dir.path())).unwrap();
    let cases = [
        ("policy.insulate=true", "policy.insulate: FastWAM has no such training"),
        ("policy.max_delay=2", "policy.max_delay is 2"),
        ("pools.foundation.tensor_parallel=2", "pools.foundation"),
        ("model.overrides={action_dim: 3}", "action_dim"),
        ("model.overrides={toggle_action_dimensions: [9]}", "`toggle_action_dimensions` has 9"),
        ("model.vae={load: x}", "model.vae"),
    ];
    for (setting, expected) in cases {
        let mut program = Command::new(env!("CARGO_BIN_EXE_loongforge"));
        program.arg("check").arg(&path).args(SHORT).arg(setting);
        let output = program.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(2), "{setting}: {said}");
        assert!(said.contains(expected), "{setting}: {said}");
    }
}
