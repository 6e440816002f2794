//! Policies that learn actions as tokens, on demonstrations of Pads: a small Pi0.5 beside its flow with knowledge insulation, and a
//! Pi0-FAST, which writes them.

use crate::fixture::{loss_bits, opened_policy, run};
use crate::resume::resume;
use loongforge::core::config;
use loongforge::core::robot::pads::{PadsSet, Part, Scene, SceneLayout, compose_pads, instruction, picture};
use loongforge::core::robot::{Moment, Observation};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const SHORT: [&str; 6] = [
    "train.steps=4",
    "train.warmup_steps=1",
    "checkpoint.every_steps=2",
    "train.global_batch_size=16",
    "run.deterministic=true",
    "log.tensorboard=false",
];

/// Demonstrations, and a model folder whose config `change` changes, with a tokenizer of actions.
fn made(change: impl Fn(&mut Value)) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    compose_pads(&dir.path().join("data"), &PadsSet { seed: 1, num_episodes: 12 }).unwrap();
    let model = dir.path().join("data/model");
    let path = model.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    // Behind the tokens of the text lie those of 256 bytes.
    let vocabulary = config["sizes"]["vocab_size"].as_u64().unwrap() + 257;
    config["sizes"]["vocab_size"] = vocabulary.into();
    config["image_token_id"] = (vocabulary - 1).into();
    change(&mut config);
    fs::write(&path, config.to_string()).unwrap();
    write_tokenizer(&model.join("action_tokenizer"));
    dir
}

/// Writes FAST's tokenizer without merges: a token for each byte of a coefficient's character.
fn write_tokenizer(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    // The letters that byte-level BPE writes bytes as.
    let is_shown = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let hidden = (0..256u32).filter(|byte| !is_shown(*byte));
    let letters = (0..256u32).filter(|byte| is_shown(*byte)).chain(hidden.enumerate().map(|(at, _)| 256 + at as u32));
    let letters = letters.map(|letter| char::from_u32(letter).unwrap().to_string());
    let vocabulary: serde_json::Map<String, Value> =
        letters.zip(0..).map(|(it, id): (_, u32)| (it, id.into())).collect();
    let level =
        |trims: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": trims, "use_regex": true});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": level(true), "post_processor": level(false), "decoder": level(true),
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary, "merges": []},
    });
    let processor =
        json!({"processor_class": "UniversalActionProcessor", "scale": 10, "min_token": -200, "vocab_size": 256});
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    fs::write(folder.join("processor_config.json"), processor.to_string()).unwrap();
}

/// Losses of a run, from the second step's checkpoint on where it is resumed; its own go to `to`.
fn trained(dir: &Path, to: &str, overrides: &[&str], is_resumed: bool) -> Vec<u64> {
    let root = dir.display().to_string();
    let text = include_str!("../../configs/pads_policy.yaml").replace("runs/pads_policy/data", &format!("{root}/data"));
    let text = text.replace("name: pads_policy", &format!("name: pads_policy\n  dir: {root}/run"));
    let ours = ["pools.encoder.threads=1", "pools.foundation.threads=1"];
    let to = format!("checkpoint.dir={root}/{to}");
    let overrides = ours.iter().chain(&SHORT).chain(overrides).copied().chain([to.as_str()]);
    let overrides: Vec<String> = overrides.map(str::to_owned).collect();
    let loaded = config::load_text_with(&text, &overrides).unwrap_or_else(|report| panic!("{report}"));
    let from = is_resumed.then(|| resume(dir.join("run/checkpoints/step-00000002")));
    loss_bits(&run(loaded, from).0)
}

fn acts(folder: &Path) -> Result<Vec<f32>, String> {
    acts_after(folder, Vec::new())
}

/// Acts in the same way where the first actions of the chunk have begun.
fn acts_after(folder: &Path, begun: Vec<f32>) -> Result<Vec<f32>, String> {
    let mut policy = opened_policy(folder);
    let scene = Scene::begin(SceneLayout::draw(1, Part::HeldOut, 0));
    let images = vec![(policy.spec().cameras[0].clone(), picture(&scene))];
    let seen = Observation { images, state: scene.state(), prompt: instruction(0), begun };
    policy.act(&seen, Moment::default()).map(|actions| actions.values)
}

#[test]
fn insulated_policies_learn_the_same_with_any_number_of_encoders_and_resume() {
    let dir = made(|config| config["sizes"]["fast_skip_tokens"] = 1.into());
    let own = ["policy.insulate=true", "policy.token_weight=0.5"];
    let with = |to: &str, more: &str, resumed| trained(dir.path(), to, &[&own[..], &[more]].concat(), resumed);
    let one = with("run/checkpoints", "pools.encoder.replicas=1", false);
    assert_eq!(one.len(), 4);
    assert_eq!(one, with("three", "pools.encoder.replicas=3", false));
    assert_ne!(one, with("other", "policy.token_weight=0.25", false));
    assert_eq!(one[2..], with("resumed", "pools.encoder.replicas=2", true));
    // What it has learned acts by flow, and its folder has the tokenizer of actions.
    assert!(acts(&dir.path().join("run")).unwrap().iter().all(|value| value.is_finite()));
}

#[test]
fn policies_that_write_actions_learn_and_act() {
    let dir = made(|config| {
        config["type"] = "pi0_fast".into();
        config["fast_skip_tokens"] = 1.into();
        config["max_decoding_steps"] = 40.into();
        let sizes = config["sizes"].as_object_mut().unwrap();
        ["expert", "state_token", "initialization"].iter().for_each(|key| drop(sizes.remove(*key)));
    });
    // A held-out loss is that of tokens, and nothing acts meanwhile.
    let eval = format!("eval={{path: {}/data/train, every_steps: 4, max_samples: 16}}", dir.path().display());
    let own = ["policy.noise_draws=1", eval.as_str()];
    let with = |to: &str, more: &[&str]| trained(dir.path(), to, &[&own[..], more].concat(), false);
    let one = with("run/checkpoints", &["pools.encoder.replicas=1"]);
    assert_eq!(one, with("three", &["pools.encoder.replicas=3"]));
    // Four steps teach no chunk: what is missing is filled up, as in lerobot.
    let is_whole = |actions: &[f32]| !actions.is_empty() && actions.iter().all(|value| value.is_finite());
    assert!(is_whole(&acts(&dir.path().join("run")).unwrap()));
    let begun = acts_after(&dir.path().join("run"), vec![0.01, 0.02]).unwrap_err();
    assert!(begun.contains("generates actions as tokens and cannot continue a started chunk"), "{begun}");
    // Adapters beside it start at nothing, learn, and act with the base that they name.
    let load = format!("model.load={}", dir.path().join("run/checkpoints/step-00000004").display());
    let load = [load.as_str(), "model.weights=load"];
    let whole = with("whole", &load);
    let adapted = with("adapted", &[&load[..], &["model.foundation.lora={r: 2, alpha: 4}"]].concat());
    let [first, expected] = [adapted[0], whole[0]].map(f64::from_bits);
    assert!((first / expected - 1.0).abs() < 1e-6 && adapted[3] != whole[3], "{adapted:?}, {whole:?}");
    let folder = dir.path().join("adapted/step-00000004");
    let config = |name: &str| -> Value { serde_json::from_slice(&fs::read(folder.join(name)).unwrap()).unwrap() };
    assert_eq!(config("config.json")["use_peft"], json!(true));
    assert_eq!(config("adapter_config.json")["task_type"], Value::Null);
    assert!(is_whole(&acts(&folder).unwrap()));
    // Nor does it act while a run goes on, or have delays to learn.
    let root = dir.path().display().to_string();
    let text = include_str!("../../configs/pads_policy.yaml").replace("runs/pads_policy/data", &format!("{root}/data"));
    let path = dir.path().join("pads.yaml");
    fs::write(&path, text).unwrap();
    for (setting, part) in [
        (eval.replace("max_samples: 16", "actions: 8").as_str(), "eval.actions"),
        ("policy.max_delay=2", "policy.max_delay is 2, but this policy cannot continue a chunk"),
    ] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_loongforge"));
        let output = program.arg("check").arg(&path).args(["policy.noise_draws=1", setting]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(output.status.code() == Some(2) && said.contains(part), "{setting}: {said}");
    }
}
