//! What is written comes back, is added to its base, or is refused.

use super::{
    AdapterBase, AdapterError, AdapterFile, Adapters, adapter_base, load_adapter, merge_adapter, read_adapter_config,
    save_adapter,
};
use crate::model::{Decoder, ModelConfig};
use crate::nn::{Linear, LinearModule, LoraConfig, ParamStore, Scope};
use crate::train::hf::Checkpoint;
use std::path::Path;
use tch::{Device, Kind, Tensor};

fn config(r: i64) -> LoraConfig {
    LoraConfig { r, alpha: 4.0, dropout: 0.1, use_rslora: true }
}

fn store(config: &LoraConfig, seed: u64) -> ParamStore {
    let mut specs = Linear::specs("model.", "up_proj", 5, 7, true, 0.5);
    specs.extend(config.specs(&LinearModule::of(&specs[0]).unwrap()));
    let params = ParamStore::new(specs, Kind::Float, Device::Cpu);
    params.init_random(seed);
    let b = params.id("model.up_proj.lora_B.weight");
    tch::manual_seed(seed as i64);
    params.set(b, &Tensor::randn([7, config.r], (Kind::Float, Device::Cpu)));
    params
}

#[test]
fn an_adapter_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let (saved, other) = (store(&config(2), 1), store(&config(2), 2));
    let file = AdapterFile {
        config: config(2),
        base: Some(AdapterBase::of("hub/models--org--base/snapshots/1f")),
        prefix: "",
    };
    save_adapter(&saved, &file, dir.path()).unwrap();
    assert_eq!(adapter_base(dir.path()).unwrap().as_deref(), Some("org/base@1f"));
    assert_eq!(AdapterBase::of("runs/models--x"), AdapterBase { name: "runs/models--x".into(), revision: None });
    let read = read_adapter_config(dir.path()).unwrap();
    assert_eq!(read, config(2));
    load_adapter(&other, dir.path()).unwrap();
    for name in ["lora_A", "lora_B"] {
        let name = format!("model.up_proj.{name}.weight");
        assert_eq!(saved.get(&name), other.get(&name));
    }
    let error = load_adapter(&store(&config(3), 1), dir.path()).unwrap_err();
    assert!(matches!(&error, AdapterError::Mismatch { problems, .. } if problems.len() == 2), "{error}");
}

#[test]
fn a_merged_model_computes_the_same() {
    let params = store(&config(2), 3);
    let linear = Linear::new(&Scope::new(&params, "model."), "up_proj");
    let x = Tensor::randn([4, 5], (Kind::Float, Device::Cpu));
    let before = linear.forward(&x);
    merge_adapter(&params);
    assert!(linear.forward(&x).allclose(&before, 1e-5, 1e-5, false));
    let bias = Some(params.get("model.up_proj.bias"));
    assert!(x.linear(&params.get("model.up_proj.weight"), bias).allclose(&before, 1e-5, 1e-5, false));
}

#[test]
fn what_is_not_implemented_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let write = |text: &str| std::fs::write(dir.path().join("adapter_config.json"), text).unwrap();
    for (text, expected) in [
        (r#"{"peft_type": "IA3"}"#, "peft_type is \"IA3\""),
        (r#"{"peft_type": "LORA", "r": 4, "target_modules": ["q"], "use_dora": true}"#, "use_dora is true"),
        (r#"{"peft_type": "LORA", "r": 4, "use_rslora": true, "modules_to_save": ["lm_head"]}"#, "modules_to_save is"),
        (r#"{"peft_type": "LORA", "r": 4, "trainable_token_indices": [7]}"#, "trainable_token_indices is [7]"),
        (r#"{"peft_type": "LORA", "r": 4, "init_lora_weights": "pissa_niter_4"}"#, "convert it"),
        (r#"{"peft_type": "LORA", "r": 0, "target_modules": ["q"]}"#, "r is not a positive integer"),
    ] {
        write(text);
        let message = read_adapter_config(dir.path()).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}

/// A config says how many heads a checkpoint may hold, and not that a run trained adapters beside them.
#[test]
fn adapters_of_prediction_heads_have_their_place() {
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/deepseek_v3_mtp-seed1");
    let json = std::fs::read_to_string(base.join("config.json")).unwrap();
    let model = ModelConfig::from_hf(&serde_json::from_str(&json).unwrap()).unwrap();
    let mut trained = model.decoder.clone();
    assert!(trained.enable_mtp(1, 0.1));
    let mut specs = Decoder::specs(&trained);
    let modules: Vec<LinearModule> = specs.iter().filter_map(LinearModule::of).collect();
    specs.extend(modules.iter().flat_map(|module| config(2).specs(module)));
    let params = ParamStore::new(specs, Kind::Float, Device::Cpu);
    params.init_random(1);
    let dir = tempfile::tempdir().unwrap();
    save_adapter(&params, &AdapterFile { config: config(2), base: None, prefix: "" }, dir.path()).unwrap();
    let adapters = Adapters::open(dir.path(), &model, &Checkpoint::open(&base).unwrap()).unwrap();
    let head = format!("model.layers.{}.eh_proj.weight", model.decoder.layers.len());
    let of_head = adapters.product(&head).unwrap();
    assert_eq!(of_head.size(), [model.decoder.hidden_size, 2 * model.decoder.hidden_size]);
    assert!(adapters.product("model.norm.weight").is_none());
}
