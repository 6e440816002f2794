//! Tests that a checkpoint of a diffusion model has what Diffusers asks for.

use super::*;
use std::collections::BTreeMap;
use std::fs;

fn saved(names: &[&str]) -> Vec<SavedFile> {
    let file = |name: &&str| SavedFile {
        name: (*name).to_owned(),
        bytes: 1,
        sha256: String::new(),
        tensors: vec!["a".into()],
    };
    names.iter().map(file).collect()
}

fn config() -> Value {
    json!({"model_type": "loongforge_diffusion", "boundary_ratio": 0.5, "scheduler": {"_class_name": "Euler", "shift": 3},
        "transformer": {"_class_name": "WanTransformer3DModel", "in_channels": 4, "out_channels": 4},
        "vae": {"_class_name": "PixelLatents", "channels": 1}, "text_encoder": {"model_type": "umt5"}})
}

fn jsons(extras: &[Extra]) -> BTreeMap<&str, &Value> {
    fn json(extra: &Extra) -> Option<(&str, &Value)> {
        match extra {
            Extra::Json(name, value) => Some((name.as_str(), value)),
            Extra::Copy(..) => None,
        }
    }
    extras.iter().filter_map(json).collect()
}

#[test]
fn a_model_without_a_folder_gets_an_index_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let files =
        saved(&["transformer/a.safetensors", "transformer_ema/a.safetensors", "text_encoder/model.safetensors"]);
    let extras = extras(&config(), &files, folder.path()).unwrap();
    let jsons = jsons(&extras);
    let names: Vec<&str> = jsons.keys().copied().collect();
    let want = [
        "model_index.json",
        "scheduler/scheduler_config.json",
        "text_encoder/config.json",
        "transformer/config.json",
        "transformer_ema/config.json",
        "vae/config.json",
    ];
    assert_eq!(names, want);
    assert_eq!(jsons["transformer_ema/config.json"], &config()["transformer"]);
    let none = json!([null, null]);
    let index = json!({"_class_name": "WanPipeline", "boundary_ratio": 0.5, "scheduler": ["diffusers", "Euler"],
        "transformer": ["diffusers", "WanTransformer3DModel"], "vae": none,
        "text_encoder": ["transformers", "UMT5EncoderModel"]});
    assert_eq!(jsons[MODEL_INDEX], &index);
    assert!(super::extras(&config(), &saved(&["model.safetensors"]), folder.path()).unwrap().is_empty());
}

#[test]
fn the_folder_that_a_run_began_with_gives_its_tokenizer_and_classes() {
    let folder = tempfile::tempdir().unwrap();
    let index = json!({"_class_name": "OwnPipeline", "_diffusers_version": "0.35.0", "boundary_ratio": 0.9,
        "tokenizer": ["transformers", "T5TokenizerFast"], "transformer": ["diffusers", "WanTransformer3DModel"],
        "transformer_2": ["diffusers", "WanTransformer3DModel"], "text_encoder": ["transformers", "OwnEncoder"]});
    fs::write(folder.path().join(MODEL_INDEX), index.to_string()).unwrap();
    fs::create_dir(folder.path().join("tokenizer")).unwrap();
    fs::write(folder.path().join("tokenizer/tokenizer.json"), "{}").unwrap();
    let files = saved(&["transformer/a.safetensors", "text_encoder/model.safetensors"]);
    let extras = extras(&config(), &files, folder.path()).unwrap();
    let copied = extras.iter().find_map(|extra| match extra {
        Extra::Copy(name, from) => Some((name.as_str(), from.clone())),
        Extra::Json(..) => None,
    });
    assert_eq!(copied, Some(("tokenizer/tokenizer.json", folder.path().join("tokenizer/tokenizer.json"))));
    let jsons = jsons(&extras);
    let index = jsons[MODEL_INDEX];
    assert_eq!(index["tokenizer"], json!(["transformers", "T5TokenizerFast"]));
    assert_eq!((&index["text_encoder"][1], &index["boundary_ratio"]), (&json!("OwnEncoder"), &json!(0.5)));
    // This run has no second transformer.
    assert_eq!(index["transformer_2"], json!([null, null]));
}

#[test]
fn parts_are_folders_of_the_model_and_their_hidden_files_stay_there() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("tokenizer")).unwrap();
    for file in ["spiece.model", "._spiece.model", ".DS_Store"] {
        fs::write(folder.path().join("tokenizer").join(file), "x").unwrap();
    }
    let extras = |index: Value| {
        fs::write(folder.path().join(MODEL_INDEX), index.to_string()).unwrap();
        super::extras(&config(), &saved(&["transformer/a.safetensors"]), folder.path())
    };
    let found = extras(json!({"tokenizer": ["transformers", "T5TokenizerFast"]})).unwrap();
    let is_copy = |extra: &&Extra| matches!(extra, Extra::Copy(..));
    let copies: Vec<&str> = found.iter().filter(is_copy).map(Extra::name).collect();
    assert_eq!(copies, ["tokenizer/spiece.model"]);
    for name in ["../tokenizer", "/etc", "tokenizer/..", ".."] {
        let error = extras(json!({name: ["transformers", "T5TokenizerFast"]})).err().unwrap().to_string();
        assert!(error.contains("model_index.json") && error.contains(&format!("{name:?}")), "{error}");
    }
}
