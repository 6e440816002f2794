//! Tests that folders of diffusion models become one JSON, and that others are refused by name.

use super::*;
use loongforge_torch::train::hf::write_tensor_file;
use std::fs;
use tch::{Device, Kind, Tensor};

fn write(folder: &Path, name: &str, json: &Value) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, json.to_string()).unwrap();
}

fn zeros(folder: &Path, name: &str, shapes: &[(&str, &[i64])]) {
    let tensors: Vec<(String, Tensor)> = shapes
        .iter()
        .map(|(name, shape)| ((*name).to_owned(), Tensor::zeros(*shape, (Kind::BFloat16, Device::Cpu))))
        .collect();
    write_tensor_file(&tensors, &[], folder, name).unwrap();
}

fn wan() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let index = json!({"_class_name": "WanImageToVideoPipeline", "_diffusers_version": "0.35.0", "boundary_ratio": 0.9,
        "expand_timesteps": false, "image_encoder": [null, null], "scheduler": ["diffusers", "UniPCMultistepScheduler"],
        "text_encoder": ["transformers", "UMT5EncoderModel"], "tokenizer": ["transformers", "T5TokenizerFast"],
        "transformer": ["diffusers", "WanTransformer3DModel"], "transformer_2": ["diffusers", "WanTransformer3DModel"],
        "vae": ["diffusers", "AutoencoderKLWan"]});
    write(folder.path(), MODEL_INDEX, &index);
    for name in ["transformer", "transformer_2"] {
        write(
            folder.path(),
            &format!("{name}/config.json"),
            &json!({"_class_name": "WanTransformer3DModel", "name": name}),
        );
    }
    write(folder.path(), "vae/config.json", &json!({"_class_name": "AutoencoderKLWan", "z_dim": 16}));
    write(folder.path(), "text_encoder/config.json", &json!({"model_type": "umt5", "d_model": 8}));
    write(folder.path(), SCHEDULER.1, &json!({"flow_shift": 5.0}));
    folder
}

#[test]
fn a_folder_is_one_json() {
    let folder = wan();
    let json = read(folder.path(), &|_| false).unwrap().unwrap();
    let network = |name: &str| json!({"_class_name": "WanTransformer3DModel", "name": name});
    let want = json!({"model_type": DIFFUSION, "pipeline": "WanImageToVideoPipeline", "boundary_ratio": 0.9,
        "expand_timesteps": false, "transformer": network("transformer"), "transformer_2": network("transformer_2"),
        "vae": {"_class_name": "AutoencoderKLWan", "z_dim": 16}, "text_encoder": {"model_type": "umt5", "d_model": 8},
        "scheduler": {"flow_shift": 5.0}});
    assert_eq!(json, want);
    // A network that is loaded from elsewhere is not read.
    fs::remove_dir_all(folder.path().join("vae")).unwrap();
    assert!(read(folder.path(), &|name| name == "vae").unwrap().unwrap().get("vae").is_none());
    let error = read(folder.path(), &|_| false).unwrap_err().to_string();
    assert!(error.contains("vae/config.json"), "{error}");
    let alone = read(&folder.path().join("transformer"), &|_| false).unwrap().unwrap();
    assert_eq!(alone, json!({"model_type": DIFFUSION, "transformer": network("transformer")}));
    // A checkpoint has it whole, and a language model is of another kind.
    write(folder.path(), "config.json", &want);
    assert_eq!(read(folder.path(), &|_| false).unwrap(), Some(want));
    write(folder.path(), "llm/config.json", &json!({"model_type": "qwen3"}));
    assert_eq!(read(&folder.path().join("llm"), &|_| false).unwrap(), None);
}

/// Others read the config than the network itself: which frames are given goes by both numbers.
#[test]
fn null_output_channels_of_wan_are_those_of_the_input() {
    let folder = wan();
    for (keys, want) in [(json!({"in_channels": 48, "out_channels": null}), 48), (json!({"out_channels": null}), 16)] {
        let mut config = keys.clone();
        config["_class_name"] = json!("WanTransformer3DModel");
        write(folder.path(), "transformer/config.json", &config);
        let json = read(folder.path(), &|_| false).unwrap().unwrap();
        assert_eq!(json["transformer"]["out_channels"], json!(want), "{keys}");
    }
}

#[test]
fn models_of_other_kinds_are_refused_by_name() {
    let refused = |file: &str, key: &str, value: Value| {
        let folder = wan();
        let mut json = read_json(&folder.path().join(file)).unwrap();
        json[key] = value;
        write(folder.path(), file, &json);
        read(folder.path(), &|_| false).unwrap_err().to_string()
    };
    for (file, key, value, expected) in [
        (MODEL_INDEX, "_class_name", json!("WanVACEPipeline"), "VACE models are not trained here"),
        (MODEL_INDEX, "_class_name", json!("QwenImageLayeredPipeline"), "Layered models are not trained here"),
        (MODEL_INDEX, "_class_name", json!("FluxPipeline"), "\"FluxPipeline\": only the pipelines WanPipeline"),
        ("transformer/config.json", "_class_name", json!("WanAnimateTransformer3DModel"), "Animate models are not"),
        ("transformer/config.json", "use_layer3d_rope", json!(true), "Layered models are not trained here"),
        ("vae/config.json", "_class_name", json!("AutoencoderKL"), "\"AutoencoderKL\": only the pipelines WanPipeline"),
    ] {
        let error = refused(file, key, value);
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
    }
}

#[test]
fn a_file_tells_its_config() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wan.safetensors");
    let shapes: [(&str, &[i64]); 9] = [
        ("patch_embedding.weight", &[256, 36, 1, 2, 2]),
        ("text_embedding.0.weight", &[256, 32]),
        ("time_embedding.0.weight", &[256, 64]),
        ("blocks.0.self_attn.q.weight", &[256, 256]),
        ("blocks.0.norm3.weight", &[256]),
        ("blocks.0.ffn.0.weight", &[96, 256]),
        ("blocks.11.ffn.0.weight", &[96, 256]),
        ("head.head.weight", &[64, 256]),
        ("img_emb.proj.0.weight", &[20]),
    ];
    zeros(folder.path(), "wan.safetensors", &shapes);
    let json = read(&path, &|_| false).unwrap().unwrap();
    let want = json!({"_class_name": "WanTransformer3DModel", "patch_size": [1, 2, 2], "num_attention_heads": 2,
        "attention_head_dim": 128, "in_channels": 36, "out_channels": 16, "text_dim": 32, "freq_dim": 64, "ffn_dim": 96,
        "num_layers": 12, "cross_attn_norm": true, "qk_norm": "rms_norm_across_heads", "eps": 1e-6, "image_dim": 20,
        "added_kv_proj_dim": 256, "pos_embed_seq_len": null, "rope_max_seq_len": 1024});
    assert_eq!(json["transformer"], want);
    zeros(folder.path(), "vace.safetensors", &[("vace_blocks.0.norm3.weight", &[2]), ("patch_embedding.weight", &[2])]);
    for (file, expected) in [("vace.safetensors", "VACE model"), ("text.safetensors", "no transformer of Wan")] {
        zeros(folder.path(), "text.safetensors", &[("shared.weight", &[2])]);
        let error = read(&folder.path().join(file), &|_| false).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_release_with_pickles_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "config.json", &json!({"_class_name": "WanModel", "num_heads": 2}));
    for name in ["Wan2.1_VAE.pth", "models_t5_umt5-xxl-enc-bf16.pth"] {
        fs::write(folder.path().join(name), b"\x80\x02").unwrap();
    }
    let error = read(folder.path(), &|_| false).unwrap_err().to_string();
    assert!(error.contains("Wan2.1_VAE.pth, models_t5") && error.contains("-Diffusers"), "{error}");
    zeros(
        folder.path(),
        "diffusion_pytorch_model.safetensors",
        &[
            ("patch_embedding.weight", &[24, 4, 1, 2, 2]),
            ("text_embedding.0.weight", &[24, 8]),
            ("time_embedding.0.weight", &[24, 8]),
            ("blocks.0.self_attn.q.weight", &[24, 24]),
            ("blocks.0.ffn.0.weight", &[8, 24]),
            ("head.head.weight", &[16, 24]),
        ],
    );
    let json = read(folder.path(), &|_| true).unwrap().unwrap();
    assert_eq!(
        (&json["transformer"]["num_attention_heads"], &json["transformer"]["num_layers"]),
        (&json!(2), &json!(1))
    );
}
