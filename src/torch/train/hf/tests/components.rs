//! Diffusion models: a folder for each network, the folder of one network, single files, and names of other releases.

use super::*;
use crate::model::COMFY_PREFIX;
use loongforge_core::data::MODEL_INDEX;

const STEM: &str = "diffusion_pytorch_model";

/// Returns a folder in Diffusers' layout: a transformer in two shards, an autoencoder with the names of its first release, an encoder
/// that is a pickle, and an autoencoder's twin without weights.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let index = r#"{"_class_name": "WanPipeline", "transformer": ["diffusers", "X"], "transformer_2": [null, null],
        "vae": ["diffusers", "X"], "text_encoder": ["transformers", "X"], "image_encoder": ["transformers", "X"]}"#;
    fs::write(folder.path().join(MODEL_INDEX), index).unwrap();
    for name in ["transformer", "transformer_2", "vae", "text_encoder", "image_encoder"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    let transformer = folder.path().join("transformer");
    let shards = [1, 2].map(|number| format!("{STEM}-0000{number}-of-00002.safetensors"));
    write(&transformer, &shards[0], &[("blocks.0.attn1.to_q.weight", numbers(&[2, 3], Kind::Float))]);
    write(&transformer, &shards[1], &[("blocks.0.norm2.weight", numbers(&[3], Kind::Float))]);
    let places =
        format!(r#"{{"blocks.0.attn1.to_q.weight": {:?}, "blocks.0.norm2.weight": {:?}}}"#, shards[0], shards[1]);
    fs::write(transformer.join(format!("{STEM}.safetensors.index.json")), format!(r#"{{"weight_map": {places}}}"#))
        .unwrap();
    let vae = [("conv1.weight", numbers(&[2], Kind::Float)), ("decoder.head.2.weight", numbers(&[4], Kind::Float))];
    write(&folder.path().join("vae"), &format!("{STEM}.safetensors"), &vae);
    fs::write(folder.path().join("text_encoder/pytorch_model.bin"), b"\x80\x02").unwrap();
    // Of no network that is there: not read.
    write(&folder.path().join("transformer_2"), &format!("{STEM}.safetensors"), &[("x", numbers(&[2], Kind::Float))]);
    folder
}

fn names(checkpoint: &Checkpoint) -> Vec<&str> {
    checkpoint.tensors().map(|(name, _)| name).collect()
}

#[test]
fn each_network_has_its_folder() {
    let folder = folder();
    let error = refused(Checkpoint::open(folder.path()));
    assert!(error.contains("text_encoder") && error.contains("pytorch_model.bin"), "{error}");
    // What is not wanted is not opened, and need not be readable.
    let checkpoint = Checkpoint::open_for(folder.path(), |name| name != "text_encoder").unwrap();
    let want = [
        "transformer.blocks.0.attn1.to_q.weight",
        "transformer.blocks.0.norm2.weight",
        "vae.decoder.conv_out.weight",
        "vae.quant_conv.weight",
    ];
    assert_eq!(names(&checkpoint), want);
    let stored = checkpoint.get(want[0]).unwrap();
    assert_eq!(checkpoint.read_rows(stored, 1, 1, Kind::Float).unwrap(), numbers(&[2, 3], Kind::Float).narrow(0, 1, 1));
    let alone = Checkpoint::open_for(folder.path(), |name| name == "transformer").unwrap();
    assert_eq!(names(&alone), want[..2]);
    fs::remove_file(folder.path().join("vae").join(format!("{STEM}.safetensors"))).unwrap();
    fs::write(folder.path().join("vae/Wan2.1_VAE.pth"), b"\x80\x02").unwrap();
    let error = refused(Checkpoint::open_for(folder.path(), |name| name == "vae"));
    assert!(error.contains("Wan2.1_VAE.pth") && error.contains("-Diffusers"), "{error}");
    let config = folder.path().join("transformer/config.json");
    fs::write(config, r#"{"quantization_config": {"quant_method": "gguf"}}"#).unwrap();
    assert!(refused(Checkpoint::open(folder.path())).contains("gguf"));
}

#[test]
fn one_network_alone_is_a_folder_or_a_file() {
    let folder = folder();
    let alone = Checkpoint::open(&folder.path().join("vae")).unwrap();
    assert_eq!(names(&alone), ["vae.decoder.conv_out.weight", "vae.quant_conv.weight"]);
    let float = || numbers(&[2], Kind::Float);
    let original = ["patch_embedding.weight", "blocks.0.self_attn.q.weight", "blocks.0.norm3.bias", "new.bias"];
    let comfy = original.map(|name| format!("{COMFY_PREFIX}{name}"));
    let want = ["blocks.0.attn1.to_q.weight", "blocks.0.norm2.bias", "new.bias", "patch_embedding.weight"];
    let want = want.map(|name| format!("transformer.{name}"));
    for (file, tensors) in [("a.safetensors", original.map(str::to_owned)), ("b.safetensors", comfy)] {
        let tensors: Vec<(&str, Tensor)> = tensors.iter().map(|name| (name.as_str(), float())).collect();
        write(folder.path(), file, &tensors);
        assert_eq!(names(&Checkpoint::open(&folder.path().join(file)).unwrap()), want, "{file}");
    }
    // An encoder's file has its own names.
    write(folder.path(), "c.safetensors", &[("shared.weight", float())]);
    assert_eq!(names(&Checkpoint::open(&folder.path().join("c.safetensors")).unwrap()), ["shared.weight"]);
}
