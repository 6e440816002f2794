//! The networks of a diffusion model as files: a folder in Diffusers' layout with one folder for each, the folder of one network,
//! or one file. A network's tensors are called `NETWORK.NAME`, where NAME is Diffusers'; files with other names are read by a
//! table ([`Naming`]).

use super::error::WeightsError;
use super::file::TensorFile;
use super::names_in::NamesIn;
use super::opening::{WHOLE, find_pickle, open_in, read_json};
use crate::model::COMFY_PREFIX;
use loongforge_core::data::{COMPONENTS, Component, MODEL_INDEX, is_fastwam};
use std::path::Path;

/// A file and what the model calls its tensors.
pub(super) type NamedFile = (TensorFile, NamesIn);

/// Opens the files of a diffusion model or of one of its networks. `None`: the folder is of another kind.
pub(super) fn open(path: &Path, is_wanted: &dyn Fn(&str) -> bool) -> Result<Option<Vec<NamedFile>>, WeightsError> {
    if path.is_file() {
        let file = TensorFile::open(path)?;
        let component = network_in(std::slice::from_ref(&file));
        return Ok(Some(named(vec![file], component)));
    }
    if path.join(MODEL_INDEX).is_file() {
        return open_networks(path, is_wanted).map(Some);
    }
    if has_networks_beside(path)? {
        return open_beside(path, is_wanted).map(Some);
    }
    let stem = COMPONENTS[0].stem;
    let is_there = |end: &str| path.join(format!("{stem}.{end}")).is_file();
    if !is_there("safetensors") && !is_there("safetensors.index.json") {
        return Ok(None);
    }
    let files = open_in(path, stem)?;
    let component = network_in(&files);
    Ok(Some(named(files, component)))
}

fn open_networks(folder: &Path, is_wanted: &dyn Fn(&str) -> bool) -> Result<Vec<NamedFile>, WeightsError> {
    let index = read_json(&folder.join(MODEL_INDEX))?;
    let mut all = Vec::new();
    for component in COMPONENTS {
        let class = index[component.name].get(1).and_then(|class| class.as_str());
        let part = folder.join(component.name);
        // Networks without weights have a config only.
        if class.is_none() || !is_wanted(component.name) || !has_tensors(&part) {
            continue;
        }
        let config = part.join("config.json");
        let config = if config.is_file() { read_json(&config)? } else { serde_json::Value::Null };
        if let Some(scheme) = config.get("quantization_config").filter(|scheme| !scheme.is_null()) {
            let reason =
                format!("quantization_config is {scheme}; networks of diffusion models can only be read unpacked");
            return Err(WeightsError::Quantization { folder: part, reason });
        }
        all.extend(named(open_in(&part, component.stem)?, Some(component)));
    }
    // Parameters of none of the networks.
    if folder.join(format!("{WHOLE}.safetensors")).is_file() {
        all.extend(open_in(folder, WHOLE)?.into_iter().map(|file| (file, NamesIn::default())));
    }
    Ok(all)
}

/// Returns whether a folder is of a policy whose frozen networks lie beside it, in folders as Diffusers has them.
fn has_networks_beside(folder: &Path) -> Result<bool, WeightsError> {
    let config = folder.join("config.json");
    Ok(config.is_file() && is_fastwam(&read_json(&config)?))
}

/// Returns the files of such a policy: its own, and those of the networks that are there.
fn open_beside(folder: &Path, is_wanted: &dyn Fn(&str) -> bool) -> Result<Vec<NamedFile>, WeightsError> {
    let own = open_in(folder, WHOLE)?;
    let names = NamesIn::of_model(&own);
    let mut all: Vec<NamedFile> = own.into_iter().map(|file| (file, names)).collect();
    for component in COMPONENTS {
        let part = folder.join(component.name);
        if is_wanted(component.name) && has_tensors(&part) {
            all.extend(named(open_in(&part, component.stem)?, Some(component)));
        }
    }
    Ok(all)
}

/// Returns whether a folder holds weights, or what should have been some.
fn has_tensors(folder: &Path) -> bool {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let is_tensors = |name: std::ffi::OsString| name.to_string_lossy().contains(".safetensors");
    names.into_iter().any(is_tensors) || find_pickle(folder).is_some()
}

/// Returns the network that has these files' tensors; `None` of an encoder, whose files have no names of their own.
fn network_in(files: &[TensorFile]) -> Option<Component> {
    let has = |name: &str| {
        files
            .iter()
            .any(|file| [name, &format!("{COMFY_PREFIX}{name}")].iter().any(|name| file.tensors().contains_key(*name)))
    };
    let known = [
        ("transformer", ["patch_embedding.weight", "img_in.weight"].as_slice()),
        (
            "vae",
            &["decoder.conv_out.weight", "decoder.head.2.weight", "encoder.conv_out.weight", "encoder.head.2.weight"],
        ),
    ];
    let found = known.into_iter().find(|(_, names)| names.iter().any(|name| has(name)));
    found.and_then(|(name, _)| Component::named(name))
}

fn named(files: Vec<TensorFile>, component: Option<Component>) -> Vec<NamedFile> {
    let names = NamesIn::of(&files, component);
    files.into_iter().map(|file| (file, names)).collect()
}
