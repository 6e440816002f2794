//! Tests that a diffusion model goes into each form and back, and that averages take the weights' place.

use super::*;
use crate::checkpoint::{Export, expect_fit, export};
use loongforge_torch::params::ParamStore;
use loongforge_torch::train::hf::{LoadOptions, Shards, Stored, save_weights, write_tensor_file};
use std::fs;
use tch::{Device, Kind, Tensor};

fn config(in_channels: i64) -> Value {
    let transformer = json!({"_class_name": "WanTransformer3DModel", "num_attention_heads": 1, "attention_head_dim": 128,
        "patch_size": [1, 2, 2], "in_channels": in_channels, "out_channels": 3, "text_dim": 16, "freq_dim": 256, "ffn_dim": 32,
        "num_layers": 1, "cross_attn_norm": true, "qk_norm": "rms_norm_across_heads", "eps": 1e-6, "image_dim": null,
        "added_kv_proj_dim": null, "pos_embed_seq_len": null, "rope_max_seq_len": 1024});
    json!({"model_type": "loongforge_diffusion", "pipeline": "WanPipeline", "transformer": transformer,
        "vae": {"_class_name": "PixelLatents", "channels": 3},
        "text_encoder": {"model_type": "umt5", "vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1,
            "num_heads": 2}})
}

/// Returns a checkpoint as a run makes it.
fn checkpoint(folder: &Path) -> ModelConfig {
    checkpoint_of(folder, &config(3))
}

fn checkpoint_of(folder: &Path, json: &Value) -> ModelConfig {
    let model = ModelConfig::from_hf(json).unwrap();
    let params = ParamStore::new(model.specs(), Kind::Float, Device::Cpu);
    params.init_random(1);
    let shards = FilesOf::networks().take(4).map(|of| Shards { of, ..Shards::single() });
    let of_all = |shards: &Shards| params.ids().any(|id| shards.of.has(&params.spec(id).name));
    let files: Vec<SavedFile> =
        shards.filter(of_all).flat_map(|shards| save_weights(&params, folder, &shards).unwrap()).collect();
    put(folder, "config.json", &text(json)).unwrap();
    for extra in extras(json, &files, folder).unwrap() {
        put(folder, extra.name(), &extra.contents().unwrap()).unwrap();
    }
    model
}

fn read(checkpoint: &Checkpoint, name: &str) -> Tensor {
    let stored: &Stored = checkpoint.get(name).unwrap_or_else(|| panic!("{name} is missing"));
    checkpoint.read(stored, Kind::Float).unwrap()
}

fn expect_same(left: &Checkpoint, right: &Checkpoint, network: &str) {
    let names = |it: &Checkpoint| -> Vec<String> {
        it.tensors().filter(|(name, _)| name.starts_with(network)).map(|(name, _)| name.to_owned()).collect()
    };
    assert_eq!(names(left), names(right));
    assert!(!names(left).is_empty());
    names(left).iter().for_each(|name| assert_eq!(read(left, name), read(right, name), "{name}"));
}

/// A run of one of two transformers leaves the other one in the folder.
#[test]
fn a_folder_of_two_transformers_has_the_weights_of_each() {
    let dir = tempfile::tempdir().unwrap();
    let mut json = config(3);
    (json["transformer_2"], json["boundary_ratio"]) = (json["transformer"].clone(), json!(0.6));
    let both = checkpoint_of(dir.path(), &json);
    let fits =
        |model: &ModelConfig| expect_fit(dir.path(), model, &LoadOptions::default()).map_err(|error| error.to_string());
    assert_eq!(fits(&both), Ok(()));
    for high in [true, false] {
        assert_eq!(fits(&both.clone().with_one_transformer(high)), Ok(()), "of high noise: {high}");
    }
}

#[test]
fn a_model_goes_into_each_form_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    checkpoint(&from);
    let plain = Export { base: None, dtype: None, max_shard_size: u64::MAX, dequantize: false, for_transformers: true };
    let refused = export(&from, &dir.path().join("hf"), &plain).unwrap_err().to_string();
    assert!(refused.contains("checkpoint export") && refused.contains("--format diffusers"), "{refused}");
    let whole = Checkpoint::open(&from).unwrap();
    let verified = crate::checkpoint::verify(&from);
    assert!(verified.iter().all(|(_, check)| check.is_ok()), "{verified:?}");
    let out = |format: Format| {
        let out = dir.path().join(format!("{format:?}"));
        export_diffusion(&from, &out, format, None, false).map(|exported| (out, exported))
    };
    let (diffusers, _) = out(Format::Diffusers).unwrap();
    expect_same(&whole, &Checkpoint::open(&diffusers).unwrap(), "");
    let index: Value = serde_json::from_slice(&fs::read(diffusers.join("model_index.json")).unwrap()).unwrap();
    assert_eq!((&index["_class_name"], &index["text_encoder"][1]), (&json!("WanPipeline"), &json!("UMT5EncoderModel")));

    let (comfy, _) = out(Format::ComfyUi).unwrap();
    let file = comfy.join("transformer.safetensors");
    let names = TensorFile::open(&file).unwrap();
    assert!(names.tensors().contains_key("model.diffusion_model.blocks.0.norm3.weight"));
    expect_same(
        &Checkpoint::open(&file).unwrap(),
        &Checkpoint::open_for(&from, |name| name == "transformer").unwrap(),
        "",
    );
    // The file tells the config.
    let read_back = crate::model::diffusers::read(&file, &|_| false).unwrap().unwrap();
    assert_eq!(read_back["transformer"], config(3)["transformer"]);

    let (original, exported) = out(Format::Original).unwrap();
    assert!(exported.said.iter().any(|said| said.contains("text_encoder is left out")), "{:?}", exported.said);
    let json: Value = serde_json::from_slice(&fs::read(original.join("config.json")).unwrap()).unwrap();
    assert_eq!(
        (&json["_class_name"], &json["dim"], &json["model_type"]),
        (&json!("WanModel"), &json!(128), &json!("t2v"))
    );
    expect_same(
        &Checkpoint::open(&original).unwrap(),
        &Checkpoint::open_for(&from, |name| name == "transformer").unwrap(),
        "",
    );
    assert!(out(Format::Kohya).unwrap_err().to_string().contains("format for adapters"));
    assert!(!dir.path().join("Kohya").exists());
}

#[test]
fn what_transformers_keeps_in_float32_is_not_narrowed_to_float16_for_diffusers() {
    let dir = tempfile::tempdir().unwrap();
    let (from, out) = (dir.path().join("from"), dir.path().join("out"));
    fs::create_dir(&from).unwrap();
    checkpoint(&from);
    export_diffusion(&from, &out, Format::Diffusers, Some(Dtype::F16), false).unwrap();
    let written = Checkpoint::open(&out).unwrap();
    let of_encoder: Vec<_> = written.tensors().filter(|(name, _)| name.starts_with("text_encoder.")).collect();
    assert!(of_encoder.iter().any(|(name, _)| name.contains(".wo.")));
    for (name, stored) in of_encoder {
        let dtype = if name.contains(".wo.") { Dtype::F32 } else { Dtype::F16 };
        assert_eq!(stored.dtype, dtype, "{name}");
    }
}

#[test]
fn averages_take_the_place_of_the_weights() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    let model = checkpoint(&from);
    let export = |out: &str| export_diffusion(&from, &dir.path().join(out), Format::Diffusers, None, true);
    let error = export("none").unwrap_err().to_string();
    assert!(error.contains("no train.ema"), "{error}");
    let average = |spec: &loongforge_torch::params::ParamSpec| {
        let shape = spec.whole_shape();
        (format!("{}.ema", spec.name), Tensor::full(shape, 0.25, (Kind::Float, Device::Cpu)))
    };
    let averages: Vec<(String, Tensor)> = model.foundation.specs().iter().map(average).collect();
    let write = |num_steps: &str, averages: &[(String, Tensor)]| {
        let notes = [("num_steps", num_steps)];
        write_tensor_file(averages, &notes, from.as_path(), "optimizer-foundation.safetensors").unwrap();
    };
    // Before the first step the weights are their own averages, and those of adapters are in no weights.
    write("0", &averages);
    export("begun").unwrap();
    expect_same(&Checkpoint::open(&from).unwrap(), &Checkpoint::open(&dir.path().join("begun")).unwrap(), "");
    let adapter = "transformer.blocks.0.attn1.to_q.lora_A.weight.ema".to_owned();
    write("1", &[(adapter, Tensor::zeros([2, 128], (Kind::Float, Device::Cpu)))]);
    let error = export("merged").unwrap_err().to_string();
    assert!(error.contains("checkpoint.merge_lora") && !dir.path().join("merged").exists(), "{error}");
    write("1", &averages);
    export("out").unwrap();
    let (old, new) = (Checkpoint::open(&from).unwrap(), Checkpoint::open(&dir.path().join("out")).unwrap());
    for (name, _) in old.tensors() {
        let is_average = read(&new, name).eq(0.25).all().int64_value(&[]) == 1;
        assert_eq!(is_average, name.starts_with("transformer."), "{name}");
        assert!(is_average || read(&new, name) == read(&old, name), "{name}");
    }
}

#[test]
fn adapters_are_merged_into_a_folder_that_diffusers_loads() {
    let dir = tempfile::tempdir().unwrap();
    let (base, lora, merged) = (dir.path().join("base"), dir.path().join("lora"), dir.path().join("merged"));
    fs::create_dir(&base).unwrap();
    checkpoint(&base);
    let index = base.join("model_index.json");
    let mut json: Value = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
    json["tokenizer"] = json!(["transformers", "T5TokenizerFast"]);
    put(&base, "model_index.json", &text(&json)).unwrap();
    put(&base, "tokenizer/tokenizer.json", b"{}").unwrap();

    let module = "blocks.0.attn1.to_q";
    let peft = json!({"peft_type": "LORA", "base_model_name_or_path": base, "r": 2, "lora_alpha": 2,
        "target_modules": [module]});
    put(&lora, "adapter_config.json", &text(&peft)).unwrap();
    put(&lora, "config.json", &text(&config(3))).unwrap();
    let half = |part: &str, shape: [i64; 2]| {
        let ones = Tensor::ones(shape, (Kind::Float, Device::Cpu));
        (format!("base_model.model.{module}.{part}.weight"), ones)
    };
    let halves = [half("lora_A", [2, 128]), half("lora_B", [128, 2])];
    write_tensor_file(&halves, &[("format", "pt")], lora.as_path(), "adapter_model.safetensors").unwrap();

    let how = Export { base: None, dtype: None, max_shard_size: u64::MAX, dequantize: false, for_transformers: true };
    export(&lora, &merged, &how).unwrap();
    let of = |name: &str| fs::read(merged.join(name)).unwrap();
    let written: Value = serde_json::from_slice(&of("model_index.json")).unwrap();
    assert_eq!(written["tokenizer"], json["tokenizer"]);
    assert_eq!(of("tokenizer/tokenizer.json"), b"{}");
    assert!(!merged.join("model.safetensors").exists());
    let (old, new) = (Checkpoint::open(&base).unwrap(), Checkpoint::open(&merged).unwrap());
    expect_same(&old, &new, "text_encoder.");
    let weight = format!("transformer.{module}.weight");
    let moved = (read(&new, &weight) - read(&old, &weight) - 2.0).abs().max().double_value(&[]);
    assert!(moved < 1e-6, "{moved}");

    // Adapters of another model have no place in files of diffusion models.
    export_diffusion(&lora, &dir.path().join("file"), Format::Diffusers, None, false).unwrap();
    put(&lora, "config.json", &text(&json!({"model_type": "qwen3"}))).unwrap();
    let error = export_diffusion(&lora, &dir.path().join("other"), Format::Diffusers, None, false).unwrap_err();
    assert!(error.to_string().contains("its adapters are not those of a diffusion model"), "{error}");
    assert!(!dir.path().join("other").exists());

    // In its turn it goes into the other formats, whole.
    export_diffusion(&merged, &dir.path().join("again"), Format::Diffusers, None, false).unwrap();
    assert!(dir.path().join("again/tokenizer/tokenizer.json").is_file());
}
