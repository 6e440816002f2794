//! Runs from whole Omni folders: talker and vocoder come out of a checkpoint as they went in.

use crate::fixture::Fixture;
use crate::resume::resume;
use crate::sound::omni;
use loongforge::torch::train::hf::{Checkpoint, Stored, write_tensor_file};
use loongforge::{ModelFolder, checkpoint};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tch::{Device, Kind, Tensor};

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn write(folder: &Path, name: &str, tensors: BTreeMap<String, Tensor>) {
    write_tensor_file(&tensors.into_iter().collect::<Vec<_>>(), &[("format", "pt")], folder, name).unwrap();
}

/// Returns all tensors of a folder, in the types that they have there.
fn tensors(folder: &Path) -> BTreeMap<String, Tensor> {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let read = |stored: &Stored| checkpoint.read(stored, stored.dtype.kind().unwrap()).unwrap();
    checkpoint.tensors().map(|(name, stored)| (name.to_owned(), read(stored))).collect()
}

fn untrained(tensors: BTreeMap<String, Tensor>) -> BTreeMap<String, Tensor> {
    tensors.into_iter().filter(|(name, _)| !name.starts_with("thinker.")).collect()
}

fn assert_same(found: &BTreeMap<String, Tensor>, expected: &BTreeMap<String, Tensor>) {
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, tensor) in found {
        assert_eq!((tensor.kind(), tensor), (expected[name].kind(), &expected[name]), "{name}");
    }
}

/// Makes the folder `whole` of the thinker in `thinker`, with a talker and a vocoder of several types in two shards.
fn make_whole(fixture: &Fixture, thinker: &Path) {
    let (model, whole) = (fixture.path().join("model"), fixture.path().join("whole"));
    fs::create_dir(&whole).unwrap();
    for entry in fs::read_dir(&model).unwrap() {
        let from = entry.unwrap().path();
        fs::copy(&from, whole.join(from.file_name().unwrap())).unwrap();
    }
    let config = json!({
        "architectures": ["Qwen2_5OmniForConditionalGeneration"], "model_type": "qwen2_5_omni", "dtype": "float32",
        "enable_audio_output": true, "thinker_config": read(&model.join("config.json")),
        "talker_config": {"dtype": "bfloat16", "hidden_size": 5, "text_config": {"torch_dtype": "float16"}},
        "token2wav_config": {"dit_config": {"dtype": "float32"}},
    });
    fs::write(whole.join("config.json"), config.to_string()).unwrap();
    fs::write(whole.join("spk_dict.pt"), "voices").unwrap();
    let numbers = |count: i64, kind| (Tensor::arange(count, (Kind::Float, Device::Cpu)) * 0.61).sin().to_kind(kind);
    let thinker = tensors(thinker).into_iter().map(|(name, tensor)| (format!("thinker.{name}"), tensor)).collect();
    let talker = BTreeMap::from([
        ("talker.model.weight".to_owned(), numbers(35, Kind::BFloat16).view([7, 5])),
        ("talker.codes".to_owned(), Tensor::from_slice(&[3i64, -1])),
        ("token2wav.scale".to_owned(), numbers(1, Kind::Double).view([])),
        ("token2wav.bias".to_owned(), numbers(6, Kind::Half)),
    ]);
    let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let places = |tensors: &BTreeMap<String, Tensor>, shard: &str| {
        tensors.keys().map(|name| (name.clone(), json!(shard))).collect::<Vec<_>>()
    };
    let map: serde_json::Map<_, _> =
        [places(&thinker, shards[0]), places(&talker, shards[1])].into_iter().flatten().collect();
    fs::write(whole.join("model.safetensors.index.json"), json!({ "weight_map": map }).to_string()).unwrap();
    write(&whole, shards[0], thinker);
    write(&whole, shards[1], talker);
}

/// The talker and the vocoder are carried in one process and in two pools, resumed, with merged adapters, and exported, unless
/// `model.load_ignore` names them.
#[test]
fn talker_and_vocoder_are_carried_unchanged() {
    let fixture = omni();
    let folder = |name: &str| fixture.path().join(name);
    let dir = |name: &str| format!("checkpoint.dir={}", folder(name).display());
    let common =
        ["run.deterministic=true", "train.warmup_steps=1", "checkpoint.every_steps=2", "data.pack.max_tokens=160"];
    fixture.run(&[&common[..], &["train.steps=1", &dir("thinker")]].concat(), None);
    make_whole(&fixture, &folder("thinker/step-00000001"));
    let whole = folder("whole");
    let load = format!("model.load={}", whole.display());
    let run = |to: &str, own: &[&str], from: Option<&Path>| {
        let from = from.map(|from| resume(from.to_owned()));
        fixture.run(&[&common[..], &["train.steps=4", "model.weights=load", &load, &dir(to)], own].concat(), from);
        folder(to).join("step-00000004")
    };
    let (given, config) = (tensors(&whole), read(&whole.join("config.json")));
    let apart = run("apart", &["pools.encoder.replicas=2"], None);
    let found = tensors(&apart);
    assert_eq!(found.keys().collect::<Vec<_>>(), given.keys().collect::<Vec<_>>());
    let changed = found.iter().filter(|(name, tensor)| **tensor != given[*name]).count();
    assert!(2 * changed > found.len(), "{changed} of {} tensors were trained", found.len());
    let carried = untrained(given);
    assert_same(&untrained(found), &carried);
    let saved = read(&apart.join("config.json"));
    for key in ["talker_config", "token2wav_config", "enable_audio_output", "architectures", "model_type"] {
        assert_eq!(saved[key], config[key], "{key}");
    }
    assert_eq!(fs::read(apart.join("spk_dict.pt")).unwrap(), b"voices");
    let checks = checkpoint::verify(&apart);
    assert!(checks.iter().all(|(_, result)| result.is_ok()), "{checks:?}");
    let again = run("again", &["pools.placement=colocated"], Some(&folder("apart/step-00000002")));
    assert_same(&tensors(&again), &tensors(&apart));
    // Adapters are beside their base, which has the rest; merged they are whole, and so is what is exported.
    let lora = ["model.foundation.lora={r: 2, alpha: 4}", "model.image_encoder.freeze=true"];
    let adapters = run("adapters", &lora, None);
    assert!(!adapters.join("model.safetensors.index.json").exists());
    let how = checkpoint::Export {
        base: None,
        dtype: None,
        max_shard_size: 1 << 30,
        dequantize: false,
        for_transformers: true,
    };
    checkpoint::export(&adapters, &folder("exported"), &how).unwrap();
    assert_same(&untrained(tensors(&folder("exported"))), &carried);
    assert_eq!(read(&folder("exported/config.json"))["talker_config"], config["talker_config"]);
    let merged = run("merged", &[&lora[..], &["checkpoint.merge_lora=true", "checkpoint.async=false"]].concat(), None);
    assert_same(&untrained(tensors(&merged)), &carried);
    // Left out on purpose.
    let silent = run("silent", &["model.load_ignore=[\"talker.*\", \"token2wav.*\"]"], None);
    assert!(untrained(tensors(&silent)).is_empty());
    assert_eq!(read(&silent.join("config.json"))["enable_audio_output"], false);
    let model = ModelFolder::open_plain(&silent).unwrap();
    let options = checkpoint::load_options(&model.json);
    checkpoint::expect_fit(&silent, &model.config, &options).unwrap();
}
