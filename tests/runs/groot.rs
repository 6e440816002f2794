//! Small GR00Ts, N1.7 and N1.6, on demonstrations of Pads: they learn the same whoever encodes, go on where they stopped, and act.

use crate::fastwam::text;
use crate::fixture::{loss_bits, opened_policy, run};
use crate::resume::{hashes, resume};
use loongforge::core::config;
use loongforge::core::data::digits;
use loongforge::core::robot::pads::{PadsSet, Part, Scene, SceneLayout, compose_pads, instruction, picture};
use loongforge::core::robot::{Moment, Observation};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
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
        "tune_visual": true, "tune_top_llm_layers": 0, "backbone_embedding_dim": width, "max_state_dim": 4,
        "max_action_dim": 4, "action_horizon": 8, "hidden_size": 16, "input_embedding_dim": 24, "max_seq_len": 16,
        "max_num_embodiments": 12,
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

        acts(&dir.path().join("whole"), model_type);
    }
}

/// The policy of a checkpoint, or of a run's folder, makes a chunk of actions.
fn acts(checkpoint: &Path, model_type: &str) {
    let mut policy = opened_policy(checkpoint);
    let scene = Scene::begin(SceneLayout::draw(1, Part::HeldOut, 0));
    let images = vec![(policy.spec().cameras[0].clone(), picture(&scene))];
    let seen = Observation { images, state: scene.state(), prompt: instruction(0), begun: Vec::new() };
    let actions = policy.act(&seen, Moment::default()).unwrap();
    assert_eq!((actions.num_steps(), actions.width), (8, 2), "{model_type}");
    assert_eq!(policy.act(&seen, Moment::default()).unwrap(), actions);
}

/// The pool that takes the vision-language model out of the foundation.
const APART: [&str; 1] = ["pools.text.threads=1"];
const FROZEN: &str = "model.overrides={tune_llm: false, tune_visual: false, tune_top_llm_layers: 0}";

/// Losses of two runs that compute the same, not in the same order: rounding grows from step to step as training does.
fn near(found: &[u64], expected: &[u64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let [found, expected] = [found, expected].map(|bits| f64::from_bits(*bits));
        assert!((found / expected - 1.0).abs() < 1e-3, "{found} {expected}");
    }
}

/// The checkpoint of a run of [`trained`] after so many steps.
fn checkpoint(dir: &Path, to: &str, step: usize) -> PathBuf {
    dir.join(to).join(format!("step-{step:08}"))
}

/// The file of each weight of a checkpoint, by the weight's name.
fn files(checkpoint: &Path) -> BTreeMap<String, String> {
    let index = fs::read(checkpoint.join("model.safetensors.index.json")).unwrap();
    let index: Value = serde_json::from_slice(&index).unwrap();
    let files = index["weight_map"].as_object().unwrap().iter();
    files.map(|(name, file)| (name.clone(), file.as_str().unwrap().to_owned())).collect()
}

/// The hash of the file that has the language model's table.
fn language_model(checkpoint: &Path) -> String {
    let files = files(checkpoint);
    let (_, own) = files.iter().find(|(name, _)| name.ends_with("embed_tokens.weight")).unwrap();
    hashes(checkpoint).into_iter().find(|(name, _)| name == own).unwrap().1
}

#[test]
fn the_vision_language_model_in_a_pool_of_its_own_learns_what_it_learns_in_the_foundation() {
    for model_type in ["Gr00tN1d7", "Gr00tN1d6"] {
        let dir = made(model_type);
        let eval =
            format!("eval={{path: {}/data/train, every_steps: 4, actions: 4, max_samples: 4}}", dir.path().display());
        let apart = |to: &str, more: &[&str]| trained(dir.path(), to, &[&APART[..], more].concat());
        let whole = trained(dir.path(), "whole", &[]);
        let one = apart("one", &["pools.text.replicas=1", &eval]);
        near(&one, &whole);
        assert_eq!(one, apart("three", &["pools.text.replicas=3"]), "{model_type}");
        let last = checkpoint(dir.path(), "one", 4);
        let [own, of_whole] = [&last, &checkpoint(dir.path(), "whole", 4)].map(|it| files(it));
        assert!(own.keys().eq(of_whole.keys()), "{model_type}: {own:?} {of_whole:?}");
        assert_ne!(language_model(&last), language_model(&checkpoint(dir.path(), "one", 2)), "{model_type}");
        acts(&last, model_type);
    }
}

#[test]
fn a_frozen_vision_language_model_in_a_pool_of_its_own_may_keep_its_features() {
    let dir = made("Gr00tN1d7");
    let apart = |to: &str, more: &[&str]| trained(dir.path(), to, &[&APART[..], &[FROZEN], more].concat());
    let computed = apart("computed", &[]);
    near(&computed, &trained(dir.path(), "whole", &[FROZEN]));
    let [first, last] = [2, 4].map(|step| language_model(&checkpoint(dir.path(), "computed", step)));
    assert_eq!(first, last);
    let kept = apart("kept", &["pools.text.cache=16MiB"]);
    near(&kept, &computed);
    assert_eq!(kept, apart("kept_by_two", &["pools.text.cache=16MiB", "pools.text.replicas=2"]));
}

#[test]
fn a_checkpoint_goes_on_with_the_vision_language_model_in_the_foundation_or_in_a_pool_of_its_own() {
    let dir = made("Gr00tN1d7");
    let whole = trained(dir.path(), "whole", &[]);
    let apart = trained(dir.path(), "apart", &APART);
    let resumed = |to: &str, from: &str, more: &[&str]| {
        let to = format!("checkpoint.dir={}/{to}", dir.path().display());
        let overrides = SHORT.iter().chain(more).copied().chain([to.as_str()]);
        let overrides: Vec<String> = overrides.map(str::to_owned).collect();
        let loaded = config::load_text_with(&text(dir.path()), &overrides).unwrap_or_else(|report| panic!("{report}"));
        loss_bits(&run(loaded, Some(resume(checkpoint(dir.path(), from, 2)))).0)
    };
    assert_eq!(resumed("again", "apart", &APART), apart[2..]);
    near(&resumed("joined", "apart", &[]), &whole[2..]);
    near(&resumed("parted", "whole", &APART), &apart[2..]);
}

#[test]
fn adapters_of_a_vision_language_model_in_a_pool_of_its_own_are_those_of_the_whole() {
    let dir = made("Gr00tN1d7");
    let lora = |part: &str, targets: &str| format!("model.{part}.lora={{r: 2, alpha: 4, target_modules: {targets}}}");
    let [all, head, text] = [("foundation", "[q_proj, to_q]"), ("foundation", "[to_q]"), ("text_encoder", "[q_proj]")]
        .map(|(part, targets)| lora(part, targets));
    let still = ["model.image_encoder.freeze=true", "model.image_projector.freeze=true"];
    let whole = trained(dir.path(), "whole", &[&still[..], &[all.as_str()]].concat());
    let apart = trained(dir.path(), "apart", &[APART[0], &head, &text]);
    near(&apart, &whole);
    let plain = trained(dir.path(), "plain", &APART);
    near(&apart[..1], &plain[..1]);
    assert_ne!(apart[3], plain[3], "adapters start at nothing, and learn");
}

#[test]
fn settings_that_a_vision_language_model_in_a_pool_of_its_own_cannot_have_are_refused_by_check() {
    let dir = made("Gr00tN1d7");
    let path = dir.path().join("groot.yaml");
    fs::write(&path, text(dir.path())).unwrap();
    let cache = format!("pools.text.cache_dir={}/features", dir.path().display());
    let check = |settings: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_loongforge"));
        let output = program.arg("check").arg(&path).args(SHORT).args(APART).args(settings).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        (output.status.code(), said)
    };
    for settings in [&[][..], &[FROZEN], &[FROZEN, cache.as_str()]] {
        let (code, said) = check(settings);
        assert!(code == Some(0) && said.contains("text_encoder: "), "{settings:?}: {said}");
    }
    let cases: [(&[&str], &str); 8] = [
        (&["pools.text.tensor_parallel=2"], "pools.text: tensor_parallel is not implemented for this encoder"),
        (&["pools.vision.threads=1"], "pools.vision: it is for the vision tower, which this model does not have"),
        (&["model.image_encoder.freeze=false"], "`model.image_encoder`: for a tower that this model does not have"),
        (&["model.image_encoder.freeze=true"], "model.image_encoder.freeze: the image tower is within the"),
        (&["pools.placement=colocated"], "`pools.text`: encoders colocated with the foundation"),
        (&[FROZEN, "model.text_encoder.freeze=false"], "trains nothing of its vision-language model"),
        (&["policy.insulate=true"], "policy.insulate: gradients of actions stop at the prefix"),
        (&[cache.as_str()], "pools.text.cache_dir: features change with every step"),
    ];
    for (settings, expected) in cases {
        let (code, said) = check(settings);
        assert!(code == Some(2) && said.contains(expected), "{settings:?}: {said}");
    }
}
