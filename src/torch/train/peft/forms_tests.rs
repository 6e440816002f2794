//! Tests that adapters of a diffusion transformer mean the same in every form of file.

use super::super::{
    AdapterFile, AdapterFolder, AdapterSettings, DIFFUSERS_LORA_FILE, adapted, adapter_config, load_adapter,
    merge_adapter, save_adapter,
};
use super::*;
use crate::model::{COMFY_PREFIX, TreeNames};
use crate::nn::Linear;
use crate::params::{ADAPTER_PARTS, LinearModule, LoraConfig, ParamSpec, ParamStore};
use crate::train::hf::{ADAPTER_FILE, TensorFile, TensorInfo};
use crate::train::peft::PREFIX;
use serde_json::json;
use std::collections::BTreeSet;
use tch::{Device, Kind, Tensor};

fn tree() -> TreeNames {
    TreeNames::of(&json!({"model_type": "loongforge_diffusion"}))
}

fn frozen(paths: &[&str]) -> Vec<ParamSpec> {
    let specs = paths.iter().flat_map(|path| {
        let (begin, last) = path.rsplit_once('.').unwrap();
        Linear::specs(&format!("{begin}."), last, 5, 7, false, 0.5)
    });
    specs.map(ParamSpec::frozen).collect()
}

/// Returns a folder of PEFT's with adapters of ranks 2 and 3 and factors that are not 1, and the weights with them.
fn peft(paths: &[&str], folder: &Path) -> Vec<Tensor> {
    let mut specs = frozen(paths);
    let modules: Vec<LinearModule> = specs.iter().filter_map(LinearModule::of).collect();
    let lora =
        |r: usize| LoraConfig { r: r as i64, alpha: 5.0 * r as f64, dropout: 0.0, use_rslora: false, use_dora: false };
    specs.extend(modules.iter().enumerate().flat_map(|(number, module)| lora(2 + number % 2).specs(module)));
    let params = ParamStore::new(specs.clone(), Kind::Float, Device::Cpu);
    params.init_random(1);
    for id in params.ids().filter(|id| params.spec(*id).name.ends_with(ADAPTER_PARTS[1])) {
        let size = params.leaf(id).size();
        params.set(id, &Tensor::arange(size.iter().product::<i64>(), (Kind::Float, Device::Cpu)).view(&size[..]).sin());
    }
    let config = adapter_config(&specs, &tree(), &AdapterSettings::default()).to_string();
    let file = AdapterFile {
        config: Some(config),
        tree: tree(),
        modules_to_save: BTreeSet::new(),
        name: AdapterFile::name(0, 1),
    };
    save_adapter(&[&params], &file, folder).unwrap();
    merged(&params, paths)
}

fn merged(params: &ParamStore, paths: &[&str]) -> Vec<Tensor> {
    merge_adapter(params);
    paths.iter().map(|path| params.get(&format!("{path}.weight")).detach().copy()).collect()
}

/// Returns the weights with the adapters of a file or folder added.
fn read(paths: &[&str], path: &Path) -> Result<Vec<Tensor>, AdapterError> {
    let folder = AdapterFolder::open(path)?;
    let specs = adapted(frozen(paths), &folder, &tree())?;
    let contents = folder.contents(&specs, &tree())?;
    folder.expect_all([&contents])?;
    let params = ParamStore::new(specs, Kind::Float, Device::Cpu);
    params.init_random(1);
    load_adapter(&params, &folder, &tree(), |_| true)?;
    Ok(merged(&params, paths))
}

fn keys(path: &Path) -> Vec<String> {
    TensorFile::open(path).unwrap().tensors().keys().cloned().collect()
}

const WAN: [&str; 3] = [
    "transformer.blocks.0.attn1.to_out.0",
    "transformer.blocks.0.attn2.add_k_proj",
    "transformer.blocks.1.ffn.net.0.proj",
];
const QWEN: [&str; 2] =
    ["transformer.transformer_blocks.0.attn.add_q_proj", "transformer.transformer_blocks.0.img_mlp.net.2"];

#[test]
fn every_form_gives_the_same_weights() {
    for (paths, comfy, kohya) in [
        (
            WAN.as_slice(),
            "diffusion_model.blocks.0.cross_attn.k_img.lora_A.weight",
            "lora_unet_blocks_0_self_attn_o.alpha",
        ),
        (
            QWEN.as_slice(),
            "diffusion_model.transformer_blocks.0.attn.add_q_proj.lora_A.weight",
            "lora_unet_transformer_blocks_0_img_mlp_net_2.alpha",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let want = peft(paths, dir.path());
        assert_eq!(read(paths, dir.path()).unwrap(), want, "{paths:?}");
        let folder = AdapterFolder::open(dir.path()).unwrap();
        for (form, key) in [
            (LoraForm::Diffusers, format!("{}.lora_B.weight", paths[0])),
            (LoraForm::ComfyUi, comfy.to_owned()),
            (LoraForm::Kohya, kohya.to_owned()),
        ] {
            let path = dir.path().join(format!("{form:?}.safetensors"));
            write_lora(&folder, form, None, &path).unwrap();
            assert!(keys(&path).contains(&key), "{form:?}: {:?}", keys(&path));
            for (found, want) in read(paths, &path).unwrap().iter().zip(&want) {
                assert!(found.allclose(want, 1e-6, 1e-6, false), "{form:?}");
            }
        }
        // From one file to another.
        let [from, to] = ["ComfyUi", "again"].map(|name| dir.path().join(format!("{name}.safetensors")));
        write_lora(&AdapterFolder::open(&from).unwrap(), LoraForm::Diffusers, None, &to).unwrap();
        assert!(
            read(paths, &to).unwrap().iter().zip(&want).all(|(found, want)| found.allclose(want, 1e-6, 1e-6, false))
        );
    }
}

#[test]
fn adapters_are_written_in_the_type_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    peft(&WAN, dir.path());
    let folder = AdapterFolder::open(dir.path()).unwrap();
    let path = dir.path().join("x.safetensors");
    for form in [LoraForm::Diffusers, LoraForm::ComfyUi, LoraForm::Kohya] {
        write_lora(&folder, form, Some(Dtype::BF16), &path).unwrap();
        let file = TensorFile::open(&path).unwrap();
        let is_right = |(name, info): (&String, &TensorInfo)| (info.dtype == Dtype::BF16) != name.ends_with(ALPHA);
        assert!(file.tensors().iter().all(is_right), "{form:?}");
    }
    let large = [("A", [2i64, 5]), ("B", [7, 2])].map(|(part, shape)| {
        let name = format!("diffusion_model.blocks.0.self_attn.q.lora_{part}.weight");
        (name, Tensor::full(shape, 1e6, (Kind::Float, Device::Cpu)))
    });
    write_tensor_file(&large, &[], dir.path(), "large.safetensors").unwrap();
    let folder = AdapterFolder::open(&dir.path().join("large.safetensors")).unwrap();
    let error = write_lora(&folder, LoraForm::ComfyUi, Some(Dtype::F16), &path).unwrap_err().to_string();
    assert!(error.contains("large.safetensors: ") && error.contains("infinite"), "{error}");
}

/// The averages of a checkpoint take the adapters' place in every form.
#[test]
fn averages_take_the_place_of_adapters() {
    let dir = tempfile::tempdir().unwrap();
    let want = peft(&WAN, dir.path());
    let plain = ParamStore::new(frozen(&WAN), Kind::Float, Device::Cpu);
    plain.init_random(1);
    let base = merged(&plain, &WAN);
    let missing = |folder: AdapterFolder| folder.with_averages(dir.path()).err().unwrap().to_string();
    let error = missing(AdapterFolder::open(dir.path()).unwrap());
    assert!(error.contains("the run had no train.ema"), "{error}");
    let names = TensorFile::open(&dir.path().join(ADAPTER_FILE)).unwrap();
    let half = |name: &String| {
        let own = names.read(name).unwrap().unwrap();
        (format!("transformer.{}.ema", name.strip_prefix(PREFIX).unwrap()), (own * 0.5).flatten(0, -1))
    };
    let averages: Vec<(String, Tensor)> = names.tensors().keys().map(half).collect();
    let write_after = |num_steps: &str, averages: &[(String, Tensor)]| {
        let notes = [("num_steps", num_steps)];
        write_tensor_file(averages, &notes, dir.path(), "optimizer-foundation.safetensors").unwrap();
        AdapterFolder::open(dir.path()).unwrap().with_averages(dir.path()).unwrap()
    };
    let write = |averages: &[(String, Tensor)]| write_after("1", averages);
    for (form, name) in [(LoraForm::Diffusers, "a.safetensors"), (LoraForm::ComfyUi, "b.safetensors")] {
        write_lora(&write(&averages), form, None, &dir.path().join(name)).unwrap();
        let found = read(&WAN, &dir.path().join(name)).unwrap();
        for ((found, own), base) in found.iter().zip(&want).zip(&base) {
            // A and B are half as large, so their product is a quarter.
            assert!((found - base).allclose(&((own - base) * 0.25), 1e-5, 1e-6, false), "{form:?}");
        }
    }
    let error =
        write_lora(&write(&averages[1..]), LoraForm::Kohya, None, &dir.path().join("c.safetensors")).unwrap_err();
    assert!(error.to_string().contains("it has no average of transformer.blocks.0"), "{error}");
    // Before the first step the adapters are their own averages, whatever the file holds.
    write_lora(&write_after("0", &averages), LoraForm::Diffusers, None, &dir.path().join("d.safetensors")).unwrap();
    let found = read(&WAN, &dir.path().join("d.safetensors")).unwrap();
    assert!(found.iter().zip(&want).all(|(found, want)| found.allclose(want, 1e-6, 1e-6, false)));
}

#[test]
fn two_transformers_have_two_files() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["transformer.blocks.0.attn1.to_q", "transformer_2.blocks.0.attn1.to_q"];
    let want = peft(&paths, dir.path());
    let folder = AdapterFolder::open(dir.path()).unwrap();
    let files = write_lora(&folder, LoraForm::ComfyUi, None, &dir.path().join("x.safetensors")).unwrap();
    let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["x_high_noise.safetensors", "x_low_noise.safetensors"]);
    for form in [LoraForm::ComfyUi, LoraForm::Kohya] {
        let apart = tempfile::tempdir().unwrap();
        write_lora(&folder, form, None, &apart.path().join("x.safetensors")).unwrap();
        for (found, want) in read(&paths, apart.path()).unwrap().iter().zip(&want) {
            assert!(found.allclose(want, 1e-5, 1e-6, false), "{form:?}");
        }
        std::fs::remove_file(apart.path().join("x_low_noise.safetensors")).unwrap();
        assert!(read(&paths, apart.path()).is_err(), "one of two is no folder of adapters");
    }
    let path = dir.path().join(DIFFUSERS_LORA_FILE);
    write_lora(&folder, LoraForm::Diffusers, None, &path).unwrap();
    // Diffusers saves it without a folder of PEFT's.
    std::fs::remove_file(dir.path().join("adapter_config.json")).unwrap();
    for (found, want) in read(&paths, dir.path()).unwrap().iter().zip(&want) {
        assert!(found.allclose(want, 1e-6, 1e-6, false));
    }
}

/// The file alone says of which of two transformers it is.
#[test]
fn a_file_for_low_noise_alone_is_the_second_transformers() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["transformer_2.blocks.0.attn1.to_q", "transformer_2.blocks.0.attn1.to_k"];
    let want = peft(&paths, dir.path());
    let folder = AdapterFolder::open(dir.path()).unwrap();
    for form in [LoraForm::ComfyUi, LoraForm::Kohya, LoraForm::Diffusers] {
        let apart = tempfile::tempdir().unwrap();
        let name = if form == LoraForm::Diffusers { "x_low_noise.safetensors" } else { "x.safetensors" };
        write_lora(&folder, form, None, &apart.path().join(name)).unwrap();
        let file = apart.path().join("x_low_noise.safetensors");
        for (found, want) in read(&paths, &file).unwrap().iter().zip(&want) {
            assert!(found.allclose(want, 1e-5, 1e-6, false), "{form:?}");
        }
        let first = ["transformer.blocks.0.attn1.to_q", "transformer.blocks.0.attn1.to_k"];
        assert!(read(&first, &file).is_err(), "{form:?}: they are not of the other one");
        // Under another name the same tensors are those of the first one, as before; Diffusers' names tell both apart.
        std::fs::rename(&file, apart.path().join("x.safetensors")).unwrap();
        let other = read(&first, &apart.path().join("x.safetensors"));
        assert_eq!(other.is_ok(), form != LoraForm::Diffusers, "{form:?}");
    }
}

/// Diffusers saves the settings of one transformer's adapters as those of the first.
#[test]
fn settings_of_a_file_for_low_noise_are_the_second_transformers() {
    let (dir, apart) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let want = peft(&["transformer_2.blocks.0.attn1.to_q"], dir.path());
    let path = dir.path().join("both.safetensors");
    write_lora(&AdapterFolder::open(dir.path()).unwrap(), LoraForm::Diffusers, None, &path).unwrap();
    let both = TensorFile::open(&path).unwrap();
    let renamed = |name: &String| (name.replace("transformer_2.", "transformer."), both.read(name).unwrap().unwrap());
    let tensors: Vec<(String, Tensor)> = both.tensors().keys().map(renamed).collect();
    let note = json!({ "transformer.r": 2, "transformer.lora_alpha": 2 }).to_string();
    write_tensor_file(&tensors, &[(METADATA, note.as_str())], apart.path(), "x_low_noise.safetensors").unwrap();
    let found = read(&["transformer_2.blocks.0.attn1.to_q"], &apart.path().join("x_low_noise.safetensors")).unwrap();
    assert!(found[0].allclose(&want[0], 1e-5, 1e-6, false));
}

#[test]
fn each_of_two_files_has_settings_of_its_own() {
    let (dir, apart) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // Of ranks 2, 3, 2 and 3.
    let paths = ["transformer", "transformer", "transformer_2", "transformer_2"];
    let maps = ["blocks.0.attn1.to_q", "blocks.0.attn1.to_k", "blocks.0.attn1.to_v", "blocks.0.attn2.to_q"];
    let paths: Vec<String> = paths.iter().zip(maps).map(|(network, map)| format!("{network}.{map}")).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let want = peft(&paths, dir.path());
    let path = dir.path().join("both.safetensors");
    write_lora(&AdapterFolder::open(dir.path()).unwrap(), LoraForm::Diffusers, None, &path).unwrap();
    let both = TensorFile::open(&path).unwrap();
    let write = |network: &str, file: &str, note: Option<&str>| {
        let mut tensors = Vec::new();
        for name in both.tensors().keys() {
            if let Some(inner) = name.strip_prefix(network) {
                tensors.push((format!("transformer.{inner}"), both.read(name).unwrap().unwrap()));
            }
        }
        let notes: Vec<(&str, &str)> = note.iter().map(|&note| (METADATA, note)).collect();
        write_tensor_file(&tensors, &notes, apart.path(), file).unwrap();
    };
    // Diffusers' names of the ranks, which are the alphas, and of a map with another.
    let note = |map: &str| {
        let others = json!({ (map): 3 });
        json!({ "transformer.r": 2, "transformer.lora_alpha": 2, "transformer.alpha_pattern": others }).to_string()
    };
    write("transformer.", "x_high_noise.safetensors", Some(note("^blocks.0.attn1.to_k").as_str()));
    write("transformer_2.", "x_low_noise.safetensors", Some(note("^blocks.0.attn2.to_q").as_str()));
    for (found, want) in read(&paths, apart.path()).unwrap().iter().zip(&want) {
        assert!(found.allclose(want, 1e-5, 1e-6, false));
    }
    std::fs::remove_file(apart.path().join("x_low_noise.safetensors")).unwrap();
    write("transformer_2.", "x_low_noise.safetensors", None);
    let error = read(&paths, apart.path()).unwrap_err().to_string();
    assert!(error.contains("only one has the settings") && error.contains(METADATA), "{error}");
}

#[test]
fn what_has_no_place_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let float = |shape: &[i64]| Tensor::zeros(shape, (Kind::Float, Device::Cpu));
    let base = "diffusion_model.blocks.0.self_attn.q";
    let pair =
        || vec![(format!("{base}.lora_A.weight"), float(&[2, 5])), (format!("{base}.lora_B.weight"), float(&[7, 2]))];
    let refused = |mut tensors: Vec<(String, Tensor)>, more: &[(&str, &[i64])]| {
        tensors.extend(more.iter().map(|(name, shape)| ((*name).to_owned(), float(shape))));
        write_tensor_file(&tensors, &[], dir.path(), "x.safetensors").unwrap();
        read(&["transformer.blocks.0.attn1.to_q"], &path).err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert_eq!(refused(pair(), &[]), "");
    // As DiffSynth-Studio writes it.
    let bare = ["A", "B"].map(|part| format!("blocks.0.self_attn.q.lora_{part}.default.weight"));
    assert_eq!(refused(bare.into_iter().zip([float(&[2, 5]), float(&[7, 2])]).collect(), &[]), "");
    let comfy = format!("{COMFY_PREFIX}blocks.0.attn1.to_q.lora_down.weight");
    for (more, expected) in [
        ([(format!("{base}.diff_b").as_str(), [7].as_slice())], "self_attn.q.diff_b matches no parameter"),
        (
            [("diffusion_model.blocks.9.self_attn.q.lora_A.weight", [2, 5].as_slice())],
            "blocks.9.self_attn.q.lora_A.weight matches",
        ),
        (
            [("lora_te_text_model.lora_down.weight", [2, 5].as_slice())],
            "lora_te_text_model.lora_down.weight matches no",
        ),
        ([(comfy.as_str(), [2, 5].as_slice())], "are the same tensor"),
        ([(format!("{base}.alpha").as_str(), [2].as_slice())], "must be one number"),
    ] {
        let error = refused(pair(), &more);
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
    }
    assert!(refused(pair().split_off(1), &[]).contains("matches no parameter"));
    // Written into another file without a model that would tell their shapes.
    let shapes: [(&[i64], &[i64]); 3] = [(&[], &[7, 2]), (&[2, 5], &[7, 3]), (&[2, 5], &[7])];
    for (down, up) in shapes {
        let tensors =
            [("A", down), ("B", up)].map(|(part, shape)| (format!("{base}.lora_{part}.weight"), float(shape)));
        write_tensor_file(&tensors, &[], dir.path(), "x.safetensors").unwrap();
        let error =
            write_lora(&AdapterFolder::open(&path).unwrap(), LoraForm::Kohya, None, &dir.path().join("y.safetensors"));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("do not fit together"), "{error}");
    }
}
