//! Tests that what is written comes back, is added to its base, or is refused.

use super::{
    AdapterBase, AdapterError, AdapterFile, AdapterFolder, AdapterSettings, Adapters, adapter_base, adapter_config,
    load_adapter, merge_adapter, modules_to_save, read_adapter_config, save_adapter,
};
use crate::model::{Decoder, ModelConfig, TreeNames};
use crate::nn::Linear;
use crate::params::{ADAPTER_PARTS, Init, LinearModule, LoraConfig, ParamSpec, ParamStore, Scope};
use crate::train::hf::Checkpoint;
use serde_json::json;
use std::path::Path;
use tch::{Device, Kind, Tensor};

fn config(r: i64) -> LoraConfig {
    LoraConfig { r, alpha: 4.0, dropout: 0.1, use_rslora: true, use_dora: false }
}

/// Writes the adapters of a store as a run does.
fn save(params: &ParamStore, base: Option<AdapterBase>, to: &Path) {
    let specs: Vec<ParamSpec> = params.ids().map(|id| params.spec(id).clone()).collect();
    let tree = TreeNames::default();
    let settings = AdapterSettings { dropout: 0.1, use_rslora: true, base, writes_text: false };
    let config = Some(adapter_config(&specs, &tree, &settings).to_string());
    let modules_to_save = modules_to_save(specs.iter(), &tree);
    let file = AdapterFile { config, modules_to_save, name: AdapterFile::name(0, 1), tree };
    save_adapter(&[params], &file, to).unwrap();
}

fn load(params: &ParamStore, from: &Path) -> Result<(), AdapterError> {
    load_adapter(params, &AdapterFolder::open(from)?, &TreeNames::default(), |_| true)
}

fn store(config: &LoraConfig, seed: u64) -> ParamStore {
    let specs = Linear::specs("model.", "up_proj", 5, 7, true, 0.5);
    let mut specs: Vec<ParamSpec> = specs.into_iter().map(ParamSpec::frozen).collect();
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
    save(&saved, Some(AdapterBase::of("hub/models--org--base/snapshots/1f")), dir.path());
    assert_eq!(adapter_base(dir.path()).unwrap().as_deref(), Some("org/base@1f"));
    assert_eq!(AdapterBase::of("runs/models--x"), AdapterBase { name: "runs/models--x".into(), revision: None });
    let read = read_adapter_config(dir.path()).unwrap();
    assert_eq!(read.lora, config(2));
    load(&other, dir.path()).unwrap();
    for name in ["lora_A", "lora_B"] {
        let name = format!("model.up_proj.{name}.weight");
        assert_eq!(saved.get(&name), other.get(&name));
    }
    std::fs::write(dir.path().join("adapter_model.safetensors"), "torn").unwrap();
    assert!(matches!(load(&store(&config(2), 1), dir.path()), Err(AdapterError::File(_))));
}

/// PEFT's class for models that write text asks these for functions that a policy lacks.
#[test]
fn only_models_that_write_text_have_a_task() {
    let specs: Vec<ParamSpec> = Linear::specs("model.", "up_proj", 5, 7, true, 0.5);
    let task = |writes_text: bool| {
        let settings = AdapterSettings { writes_text, ..AdapterSettings::default() };
        adapter_config(&specs, &TreeNames::default(), &settings)["task_type"].clone()
    };
    assert_eq!((task(true), task(false)), (json!("CAUSAL_LM"), json!(null)));
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
        (r#"{"peft_type": "LORA", "r": 4, "target_modules": ["q"], "lora_bias": true}"#, "lora_bias is true"),
        (r#"{"peft_type": "LORA", "r": 4, "alpha_pattern": {"(": 3}}"#, "alpha_pattern: \"(\""),
        (r#"{"peft_type": "LORA", "r": 4, "trainable_token_indices": [7]}"#, "trainable_token_indices is [7]"),
        (r#"{"peft_type": "LORA", "r": 4, "init_lora_weights": "pissa_niter_4"}"#, "convert it"),
        (r#"{"peft_type": "LORA", "r": 0, "target_modules": ["q"]}"#, "r must be a positive integer"),
    ] {
        write(text);
        let message = read_adapter_config(dir.path()).err().expect("refused").to_string();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn settings_that_cannot_be_read_are_refused_rather_than_replaced_by_defaults() {
    let dir = tempfile::tempdir().unwrap();
    let read = |setting: &str| {
        let text = format!(r#"{{"peft_type": "LORA", "r": 4, {setting}}}"#);
        std::fs::write(dir.path().join("adapter_config.json"), text).unwrap();
        read_adapter_config(dir.path()).map_err(|error| error.to_string())
    };
    for (setting, expected) in [
        (r#""lora_alpha": "16""#, "lora_alpha is \"16\", but must be a number"),
        (r#""use_rslora": "true""#, "use_rslora is \"true\", but must be true or false"),
        (r#""use_dora": 1"#, "use_dora is 1, but must be true or false"),
        (r#""lora_dropout": 1.5"#, "lora_dropout is 1.5, but must be at least 0 and below 1"),
        (r#""target_parameters": ["a", 2]"#, "target_parameters is [\"a\",2], but must be a list of names"),
        (r#""alpha_pattern": [3]"#, "alpha_pattern: [3] does not map patterns to numbers"),
        (r#""bias": 1"#, "bias is 1; supported: \"none\""),
    ] {
        let error = read(setting).err().unwrap_or_else(|| panic!("{setting} is read"));
        assert!(error.contains(expected), "{error}");
    }
    let unset =
        r#""lora_alpha": null, "use_dora": null, "target_parameters": null, "alpha_pattern": null, "bias": null"#;
    let found = read(unset).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((found.lora.alpha, found.lora.use_dora, found.target_parameters.len()), (8.0, false, 0));
}

/// A config says how many heads a checkpoint may hold, and not that a run trained adapters beside them.
#[test]
fn adapters_of_prediction_heads_have_their_place() {
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/deepseek_v3_mtp-seed1");
    let json = std::fs::read_to_string(base.join("config.json")).unwrap();
    let model = ModelConfig::from_hf(&serde_json::from_str(&json).unwrap()).unwrap();
    let decoder = model.decoder().unwrap();
    let mut trained = decoder.clone();
    assert!(trained.enable_mtp(1, 0.1));
    let mut specs: Vec<ParamSpec> = Decoder::specs(&trained).into_iter().map(ParamSpec::frozen).collect();
    let modules: Vec<LinearModule> = specs.iter().filter_map(LinearModule::of).collect();
    specs.extend(modules.iter().flat_map(|module| config(2).specs(module)));
    let params = ParamStore::new(specs, Kind::Float, Device::Cpu);
    params.init_random(1);
    let dir = tempfile::tempdir().unwrap();
    save(&params, None, dir.path());
    let adapters = Adapters::open(dir.path(), &model, &Checkpoint::open(&base).unwrap()).unwrap();
    let head = format!("model.layers.{}.eh_proj.weight", decoder.layers.len());
    let of_head = Tensor::zeros([decoder.hidden_size, 2 * decoder.hidden_size], (Kind::Float, Device::Cpu));
    assert!(adapters.changes(&head) && !adapters.changes("model.norm.weight"));
    assert_eq!(adapters.apply(&head, &of_head).size(), of_head.size());
}

/// Ranks and alphas that differ, norms of rows and a module that is trained itself, in one folder.
#[test]
fn one_folder_has_adapters_of_several_kinds() {
    let one = LoraConfig { use_dora: true, ..config(2) };
    let other = LoraConfig { r: 3, alpha: 9.0, ..one.clone() };
    let make = |seed: u64| {
        let mut specs = Linear::specs("model.a.", "up_proj", 5, 7, true, 0.5);
        specs.extend(Linear::specs("model.b.", "up_proj", 5, 7, false, 0.5));
        let modules: Vec<LinearModule> = specs.iter().filter_map(LinearModule::of).collect();
        specs = specs.into_iter().map(ParamSpec::frozen).collect();
        specs.extend(modules.iter().zip([&one, &other]).flat_map(|(module, lora)| lora.specs(module)));
        specs.extend(Linear::specs("model.", "head", 7, 2, true, 0.5));
        let params = ParamStore::new(specs, Kind::Float, Device::Cpu);
        params.init_random(seed);
        for id in params.ids().filter(|id| params.spec(*id).name.ends_with(ADAPTER_PARTS[2])) {
            let norms = Tensor::arange(7, (Kind::Float, Device::Cpu)) + seed as f64;
            params.set(id, &norms);
        }
        params
    };
    let (saved, loaded, dir) = (make(1), make(2), tempfile::tempdir().unwrap());
    save(&saved, None, dir.path());
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("adapter_config.json")).unwrap()).unwrap();
    assert_eq!((&config["r"], &config["lora_alpha"]), (&json!(2), &json!(4)));
    assert_eq!(config["rank_pattern"], json!({"^model\\.b\\.up_proj": 3}));
    assert_eq!(config["alpha_pattern"], json!({"^model\\.b\\.up_proj": 9.0}));
    assert_eq!((&config["use_dora"], &config["modules_to_save"]), (&json!(true), &json!(["model.head"])));
    let folder = AdapterFolder::open(dir.path()).unwrap();
    let specs: Vec<ParamSpec> = saved.ids().map(|id| saved.spec(id).clone()).collect();
    let contents = folder.contents(&specs, &TreeNames::default()).unwrap();
    let found: Vec<_> = contents.adapters.iter().map(|found| (found.lora.r, found.lora.alpha)).collect();
    assert_eq!(found, [(2, 4.0), (3, 9.0)]);
    load(&loaded, dir.path()).unwrap();
    for id in saved.trained_ids() {
        assert_eq!(saved.leaf(id), loaded.leaf(id), "{}", saved.spec(id).name);
    }
    folder.expect_all([&contents]).unwrap();
    let refused = folder.expect_all([]).unwrap_err();
    let error = refused.to_string();
    assert!(format!("{refused:?}").contains("model.head.weight matches no parameter"), "{refused:?}");
    assert!(error.contains("up_proj.lora_A.weight matches no parameter; ") && error.ends_with("and 4 more"), "{error}");
}

#[test]
fn a_head_that_is_the_embedding_says_why_it_has_no_tensor_of_its_own() {
    let lora = config(2);
    // Of a model whose head is tied, not there, trained itself, and adapted.
    let [tied, alone, both, adapted] = [0, 0, 1, 2].map(|head| {
        let mut specs = vec![ParamSpec::new("model.embed_tokens.weight", &[6, 5], Init::Normal(0.5))];
        let mut maps = Linear::specs("model.", "up_proj", 5, 7, false, 0.5);
        let own_head = Linear::specs("", "lm_head", 5, 6, false, 0.5);
        match head {
            1 => specs.extend(own_head),
            2 => maps.extend(own_head),
            _ => {}
        }
        specs.extend(maps.iter().flat_map(|map| lora.specs(&LinearModule::of(map).unwrap())));
        specs.extend(maps.into_iter().map(ParamSpec::frozen));
        let params = ParamStore::new(specs, Kind::Float, Device::Cpu);
        params.init_random(1);
        params
    });
    let tree = TreeNames::default().with_tied("model.embed_tokens", "lm_head");
    let error = |params: &ParamStore| {
        let dir = tempfile::tempdir().unwrap();
        save(params, None, dir.path());
        let folder = AdapterFolder::open(dir.path()).unwrap();
        let specs: Vec<ParamSpec> = tied.ids().map(|id| tied.spec(id).clone()).collect();
        let loaded = load_adapter(&tied, &folder, &tree, |_| true);
        let all = loaded.and_then(|()| folder.expect_all([&folder.contents(&specs, &tree)?]));
        all.unwrap_err().to_string()
    };
    let why = "the model's head is its embedding (tie_word_embeddings)";
    for (params, what) in [
        (&alone, "base_model.model.lm_head.weight is missing"),
        (&both, "base_model.model.lm_head.weight differs from the embedding in the file"),
        (&adapted, "base_model.model.lm_head.weight is missing"),
    ] {
        let error = error(params);
        assert!(error.contains(&format!("{what}: {why}")), "{error}");
    }
    // Of the embedding nothing is in a file with adapters alone.
    let dir = tempfile::tempdir().unwrap();
    let mut specs: Vec<ParamSpec> = adapted.ids().map(|id| adapted.spec(id).clone()).collect();
    specs.retain(|spec| !spec.name.contains("embed_tokens"));
    let adapters = ParamStore::new(specs, Kind::Float, Device::Cpu);
    adapters.init_random(1);
    save(&adapters, None, dir.path());
    let folder = AdapterFolder::open(dir.path()).unwrap();
    let specs: Vec<ParamSpec> = tied.ids().map(|id| tied.spec(id).clone()).collect();
    let refused = folder.expect_all([&folder.contents(&specs, &tree).unwrap()]).unwrap_err().to_string();
    assert!(refused.contains(&format!("lm_head.lora_A.weight matches no parameter: {why}")), "{refused}");
}
