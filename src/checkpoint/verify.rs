//! Whether a folder is whole: hashes, headers, sizes, index, and config against tensors.

use super::fit::{expect_fit, load_options};
use super::inspect::optimizer_files;
use crate::folder::ModelFolder;
use loongforge_actors::checkpoint::{MANIFEST, Manifest};
use loongforge_core::data::Tokenizer;
use loongforge_core::engine::error_chain;
use loongforge_core::files;
use loongforge_torch::engine::Families;
use loongforge_torch::train::hf::{Checkpoint, INDEX_FILE, TensorFile, is_adapter};
use loongforge_torch::train::{adapter_base, read_adapter_config};
use serde_json::Value;
use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;

/// What was checked and, where something is wrong, what. In order, one line a check.
pub fn verify(folder: &Path) -> Vec<(&'static str, Result<String, String>)> {
    let mut checks: Vec<(&'static str, Result<String, String>)> = Vec::new();
    if folder.join(MANIFEST).is_file() {
        checks.push(("manifest", told(manifest(folder))));
    }
    checks.push(("headers", told(headers(folder))));
    if folder.join(INDEX_FILE).is_file() {
        checks.push(("index", told(index(folder))));
    }
    checks.push(("config and tensors", told(config(folder))));
    if folder.join("tokenizer.json").is_file() {
        checks.push(("tokenizer", told(tokenizer(folder))));
    }
    checks
}

type Check = Result<String, Box<dyn Error>>;

fn told(check: Check) -> Result<String, String> {
    check.map_err(|error| error_chain(error.as_ref()))
}

fn manifest(folder: &Path) -> Check {
    let manifest = Manifest::read(folder)?;
    manifest.verify(folder)?;
    Ok(format!("{} files are what was written after step {}", manifest.files.len(), manifest.num_steps))
}

fn headers(folder: &Path) -> Check {
    let checkpoint = Checkpoint::open_any(folder)?;
    let states = optimizer_files(folder)?;
    for name in &states {
        let file = TensorFile::open(&folder.join(name))?;
        if file.note("num_steps").and_then(|steps| steps.parse::<u64>().ok()).is_none() {
            return Err(format!("{name} does not say its step").into());
        }
    }
    Ok(format!("{} files are whole", checkpoint.files().len() + states.len()))
}

fn index(folder: &Path) -> Check {
    let checkpoint = Checkpoint::open(folder)?;
    let index: Value = serde_json::from_slice(&files::read(&folder.join(INDEX_FILE), files::MAX_TEXT_BYTES)?)?;
    let empty = serde_json::Map::new();
    let listed: BTreeSet<&str> = index["weight_map"].as_object().unwrap_or(&empty).keys().map(String::as_str).collect();
    let tensors = checkpoint.files().iter().flat_map(|file| file.tensors());
    let (mut total, mut unlisted) = (0, Vec::new());
    for (name, info) in tensors {
        total += info.len;
        if !listed.contains(name.as_str()) {
            unlisted.push(name.as_str());
        }
    }
    if let Some(first) = unlisted.first() {
        return Err(
            format!("{INDEX_FILE} does not list {} tensors of its files, such as {first}", unlisted.len()).into()
        );
    }
    match index["metadata"]["total_size"].as_u64() {
        Some(size) if size != total => {
            Err(format!("{INDEX_FILE} promises {size} bytes, the files have {total}").into())
        }
        _ => Ok(format!("{} tensors are where it says", listed.len())),
    }
}

fn config(folder: &Path) -> Check {
    if is_adapter(folder) {
        let config = read_adapter_config(folder)?;
        let base = adapter_base(folder)?.unwrap_or_else(|| "a base without a name".into());
        return Ok(format!("adapters of rank {} for {base}", config.r));
    }
    let model = ModelFolder::open_plain(folder)?;
    expect_fit(folder, &Families::of(&model.config), &load_options(&model.json, false))?;
    Ok(format!("the weights are those of a {}", model.config.model_type))
}

fn tokenizer(folder: &Path) -> Check {
    let json = |name: &str| -> Result<Value, Box<dyn Error>> {
        let path = folder.join(name);
        Ok(if path.is_file() {
            serde_json::from_slice(&files::read(&path, files::MAX_TEXT_BYTES)?)?
        } else {
            Value::Null
        })
    };
    Tokenizer::open(folder, &json("config.json")?, &json("tokenizer_config.json")?)?;
    Ok("its ids are below the vocabulary's size".to_owned())
}
