//! Opens the files of weights in a folder.

use super::error::WeightsError;
use super::file::TensorFile;
use loongforge_core::files;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Bytes of `config.json` or an index at most.
const MAX_JSON: u64 = 256 << 20;
/// The name of the files of a model's weights before `.safetensors`, or `.safetensors.index.json`.
pub(super) const WHOLE: &str = "model";

/// Returns the files of a folder, whose names begin with `stem`.
///
/// # Errors
/// Fails as [`Checkpoint::open`] does.
pub(super) fn open_in(folder: &Path, stem: &str) -> Result<Vec<TensorFile>, WeightsError> {
    let index = folder.join(format!("{stem}.safetensors.index.json"));
    let single = folder.join(format!("{stem}.safetensors"));
    // transformers takes the one file where both are there, diffusers the index.
    if single.is_file() && (stem == WHOLE || !index.is_file()) {
        return Ok(vec![TensorFile::open(&single)?]);
    }
    if index.is_file() {
        return open_shards(folder, &index);
    }
    let folder = folder.to_owned();
    Err(match (find_pickle(&folder), stem == WHOLE) {
        (Some(file), true) => WeightsError::Pickle { folder, file },
        (Some(file), false) => WeightsError::PickledNetwork { folder, file },
        (None, _) => WeightsError::NoWeights { others: others(&folder, stem), folder, stem: stem.to_owned() },
    })
}

/// Returns a clause about the files of weights in a folder that have other names than `stem`; an empty text if there are none.
fn others(folder: &Path, stem: &str) -> String {
    let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let mut names: Vec<String> = files.filter_map(|name| name.into_string().ok()).collect();
    names.retain(|name| name.ends_with(".safetensors"));
    names.sort();
    let is_shard = |name: &&String| name.strip_prefix(stem).is_some_and(|rest| rest.contains("-of-"));
    if let Some(shard) = names.iter().find(is_shard) {
        return format!("; it has {shard}, but not the index of the shards: copy that as well");
    }
    match names.as_slice() {
        [] => String::new(),
        [name] => format!("; it has {name}: name that file if it is meant"),
        [name, more @ ..] => format!("; it has {name} and {} more: name the one that is meant", more.len()),
    }
}

/// Returns a file of the kind that runs code when it is opened.
pub(super) fn find_pickle(folder: &Path) -> Option<String> {
    let names = fs::read_dir(folder).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut found: Vec<String> = names
        .filter(|name| [".bin", ".pt", ".pth", ".ckpt", ".pkl"].iter().any(|ending| name.ends_with(ending)))
        .collect();
    found.sort();
    // The usual name first: a folder may hold other such files.
    found.iter().find(|name| name.starts_with("pytorch_model")).or(found.first()).cloned()
}

fn open_shards(folder: &Path, index: &Path) -> Result<Vec<TensorFile>, WeightsError> {
    let wrong = |reason: String| WeightsError::Index { path: index.to_owned(), reason };
    let json = read_json(index)?;
    let places = json["weight_map"].as_object().ok_or_else(|| wrong("it has no `weight_map` object".into()))?;
    let mut names = BTreeSet::new();
    for (tensor, file) in places {
        let file = file.as_str().ok_or_else(|| wrong(format!("weight_map.{tensor} is not a file name")))?;
        if Path::new(file).file_name().is_none_or(|last| last != file) {
            return Err(wrong(format!("weight_map.{tensor} points outside the folder: {file}")));
        }
        names.insert(file);
    }
    if names.is_empty() {
        return Err(wrong("its `weight_map` is empty".into()));
    }
    let missing: Vec<&str> = names.iter().copied().filter(|name| !folder.join(name).is_file()).collect();
    if let Some(first) = missing.first() {
        let count = missing.len();
        let others = if count > 1 { format!(", and {} more shards", count - 1) } else { String::new() };
        return Err(wrong(format!("it names {first}, which is not in {}{others}", folder.display())));
    }
    let files = names.iter().map(|name| TensorFile::open(&folder.join(name))).collect::<Result<Vec<_>, _>>()?;
    let by_name: BTreeMap<&str, &TensorFile> = names.iter().copied().zip(&files).collect();
    for (tensor, file) in places {
        let file = file.as_str().unwrap_or_default();
        if !by_name[file].tensors().contains_key(tensor) {
            return Err(wrong(format!("it says that {tensor} is in {file}, which has no such tensor")));
        }
    }
    let mut seen: BTreeMap<&String, &TensorFile> = BTreeMap::new();
    for file in &files {
        for tensor in file.tensors().keys() {
            if let Some(other) = seen.insert(tensor, file) {
                let (left, right) = (other.path().display(), file.path().display());
                return Err(wrong(format!("{tensor} is both in {left} and in {right}")));
            }
        }
    }
    Ok(files)
}

/// Reads a file of bounded size as JSON.
pub(super) fn read_json(path: &Path) -> Result<Value, WeightsError> {
    let wrong = |reason: String| WeightsError::Index { path: path.to_owned(), reason };
    let text = files::read(path, MAX_JSON).map_err(|error| wrong(error.to_string()))?;
    serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))
}
