//! Describes whether a folder is whole: hashes, headers, sizes, values, index, and config against tensors.

use super::fit::{expect_fit, load_options};
use super::inspect::optimizer_files;
use super::row_blocks;
use crate::model::folder::ModelFolder;
use crate::model::locate::is_lora_of_others;
use loongforge_core::checkpoint::{MANIFEST, Manifest};
use loongforge_core::data::Tokenizer;
use loongforge_core::engine::error_chain;
use loongforge_core::files;
use loongforge_core::text::counted;
use loongforge_torch::train::hf::{Checkpoint, Dtype, Filling, INDEX_FILE, SINGLE_FILE, TensorFile, fill, is_adapter};
use loongforge_torch::train::{adapter_base, read_adapter_config};
use serde_json::Value;
use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;
use tch::{Device, Kind, Tensor};

/// Checks a checkpoint. Returns the name of each check and its result, in order.
pub fn verify(folder: &Path) -> Vec<(&'static str, Result<String, String>)> {
    let mut checks: Vec<(&'static str, Result<String, String>)> = Vec::new();
    if folder.join(MANIFEST).is_file() {
        checks.push(("manifest", outcome(manifest(folder))));
    }
    let headers = outcome(headers(folder));
    let is_readable = headers.is_ok();
    checks.push(("headers", headers));
    if is_readable {
        checks.push(("values", outcome(values(folder))));
    }
    if folder.join(INDEX_FILE).is_file() {
        checks.push(("index", outcome(index(folder))));
    }
    // Other programs keep adapters without a config.
    if !(folder.is_file() && is_lora_of_others(folder)) {
        checks.push(("config and tensors", outcome(config(folder))));
    }
    if folder.join("tokenizer.json").is_file() {
        checks.push(("tokenizer", outcome(tokenizer(folder))));
    }
    checks
}

type Check = Result<String, Box<dyn Error>>;

/// Returns the begin of a sentence about so many: `1 file is`, `2 files are`.
fn are(count: usize, noun: &str) -> String {
    format!("{} {}", counted(count as u64, noun), if count == 1 { "is" } else { "are" })
}

fn outcome(check: Check) -> Result<String, String> {
    check.map_err(|error| error_chain(error.as_ref()))
}

fn manifest(folder: &Path) -> Check {
    let manifest = Manifest::read(folder)?;
    manifest.verify(folder)?;
    Ok(format!("{} as written after step {}", are(manifest.files.len(), "file"), manifest.num_steps))
}

fn headers(folder: &Path) -> Check {
    let checkpoint = Checkpoint::open_any(folder)?;
    let states = optimizer_files(folder)?;
    for name in &states {
        let file = TensorFile::open(&folder.join(name))?;
        if file.note("num_steps").and_then(|steps| steps.parse::<u64>().ok()).is_none() {
            return Err(format!("{name} does not contain its step (num_steps)").into());
        }
    }
    Ok(format!("{} whole", are(checkpoint.files().len() + states.len(), "file")))
}

/// Sees to it that every number of weights and optimizer state is finite.
fn values(folder: &Path) -> Check {
    let checkpoint = Checkpoint::open_any(folder)?;
    let _no_grad = tch::no_grad_guard();
    let (mut count, mut found) = (0, Vec::new());
    for (name, stored) in checkpoint.tensors() {
        let kind = if stored.is_packed() { Some(Kind::Float) } else { float_kind(stored.dtype) };
        let Some(kind) = kind else { continue };
        let mut bad = [0; 2];
        for (first, rows) in row_blocks(&stored.shape) {
            let block = match stored.shape.is_empty() {
                true => checkpoint.read(stored, kind)?,
                false => checkpoint.read_rows(stored, first, rows, kind)?,
            };
            add_bad(&mut bad, &block);
        }
        count += 1;
        found.extend(told_bad(name, bad));
    }
    for state in optimizer_files(folder)? {
        let file = TensorFile::open(&folder.join(&state))?;
        for (name, info) in file.tensors() {
            let Some(kind) = float_kind(info.dtype) else { continue };
            let mut bad = [0; 2];
            for (first, rows) in row_blocks(&[info.shape.iter().product()]) {
                let memory = Tensor::empty([rows], (kind, Device::Cpu));
                fill(vec![Filling { file: &file, name: name.clone(), first, memory: memory.shallow_clone() }])?;
                add_bad(&mut bad, &memory);
            }
            count += 1;
            found.extend(told_bad(&format!("{state}: {name}"), bad));
        }
    }
    if found.is_empty() {
        return Ok(format!("all numbers of {count} tensors are finite"));
    }
    Err(format!("{} of {count} tensors are not finite:\n  {}", found.len(), found.join("\n  ")).into())
}

fn float_kind(dtype: Dtype) -> Option<Kind> {
    dtype.is_plain_float().then(|| dtype.kind()).flatten()
}

/// Adds the numbers of NaN and of infinities in a block.
fn add_bad(bad: &mut [i64; 2], block: &Tensor) {
    for (count, is_bad) in bad.iter_mut().zip([block.isnan(), block.isinf()]) {
        *count += is_bad.sum(Kind::Int64).int64_value(&[]);
    }
}

fn told_bad(name: &str, [nan, infinite]: [i64; 2]) -> Option<String> {
    (nan + infinite > 0).then(|| format!("{name}: {nan} NaN, {infinite} infinite"))
}

fn index(folder: &Path) -> Check {
    let checkpoint = Checkpoint::open(folder)?;
    let index: Value = serde_json::from_slice(&files::read(&folder.join(INDEX_FILE), files::MAX_TEXT_BYTES)?)?;
    let empty = serde_json::Map::new();
    let places = index["weight_map"].as_object().unwrap_or(&empty);
    if folder.join(SINGLE_FILE).is_file() && places.values().any(|file| file != SINGLE_FILE) {
        return Err(format!(
            "{SINGLE_FILE} is read, and not the files that {INDEX_FILE} lists: remove those that are old"
        )
        .into());
    }
    let listed: BTreeSet<&str> = places.keys().map(String::as_str).collect();
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
            Err(format!("{INDEX_FILE} says {size} bytes, but the files have {total}").into())
        }
        _ => Ok(format!("{} where it says", are(listed.len(), "tensor"))),
    }
}

fn config(folder: &Path) -> Check {
    if is_adapter(folder) {
        let config = read_adapter_config(folder)?;
        let base = adapter_base(folder)?.unwrap_or_else(|| "a base without a name".into());
        return Ok(format!("adapters of rank {} for {base}", config.lora.r));
    }
    let model = ModelFolder::open_plain(folder)?;
    expect_fit(folder, &model.config, &load_options(&model.json))?;
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
