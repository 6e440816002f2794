//! Files that make a checkpoint of a diffusion model a folder that Diffusers loads: `model_index.json`, the config of each network
//! and of the scheduler, and the folders of tokenizers and processors.

use loongforge_core::checkpoint::{CheckpointError, entries};
use loongforge_core::data::{COMPONENTS, Component, MODEL_INDEX};
use loongforge_core::files;
use loongforge_core::message::SavedFile;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Folder of the scheduler's settings, its key in the model's config, and their file.
const SCHEDULER: (&str, &str) = ("scheduler", "scheduler/scheduler_config.json");

/// Suffix of the name of a folder with a network's averaged weights.
const AVERAGED: &str = "_ema";

/// Classes of transformers by `model_type`, for configs that do not name their class.
const CLASSES: [(&str, &str); 5] = [
    ("umt5", "UMT5EncoderModel"),
    ("t5", "T5EncoderModel"),
    ("clip_vision_model", "CLIPVisionModel"),
    ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"),
    ("qwen3", "Qwen3Model"),
];

/// A file to write.
pub enum Extra {
    /// JSON under this name.
    Json(String, Value),
    /// A copy of this file.
    Copy(String, PathBuf),
}

/// Returns the files that a checkpoint of a model with this config needs besides its weights, which are `saved`; `model_dir` is the
/// folder that the run started from. None if no network is saved, as in checkpoints of adapters.
///
/// # Errors
/// Fails if a folder cannot be read, or `model_index.json` names one elsewhere.
pub fn extras(config: &Value, saved: &[SavedFile], model_dir: &Path) -> Result<Vec<Extra>, CheckpointError> {
    let folders: BTreeSet<&str> = saved.iter().filter_map(|file| Some(file.name.split_once('/')?.0)).collect();
    if folders.is_empty() {
        return Ok(Vec::new());
    }
    let mut extras = Vec::new();
    let config_of =
        |folder: &str| config.get(folder.strip_suffix(AVERAGED).unwrap_or(folder)).filter(|it| it.is_object());
    let without_weights = COMPONENTS.iter().map(|network| network.name);
    for folder in folders.iter().copied().chain(without_weights).collect::<BTreeSet<_>>() {
        if let Some(network) = config_of(folder) {
            extras.push(Extra::Json(format!("{folder}/config.json"), network.clone()));
        }
    }
    if let Some(scheduler) = config.get(SCHEDULER.0) {
        extras.push(Extra::Json(SCHEDULER.1.to_owned(), scheduler.clone()));
    }
    let path = model_dir.join(MODEL_INDEX);
    let original = match files::read(&path, files::MAX_TEXT_BYTES) {
        Ok(text) => serde_json::from_slice(&text).unwrap_or_default(),
        // A run that began without such a folder.
        Err(_) => Map::new(),
    };
    let own = |name: &str| Component::named(name).is_some() || name == SCHEDULER.0;
    for name in original.iter().filter(|(name, part)| part.is_array() && !own(name)).map(|(name, _)| name) {
        if name.contains('/') || !files::is_inner_name(name) {
            return Err(CheckpointError::torn(
                &path,
                format!("it names the part {name:?}, which is not a folder's name"),
            ));
        }
        let found = entries(&model_dir.join(name))?.into_iter().filter(|(_, path)| path.is_file());
        let named = found.map(|(file, from)| (format!("{name}/{file}"), from));
        // Hidden files of other programs are not the model's.
        let plain = named.filter(|(name, _)| files::is_inner_name(name));
        extras.extend(plain.map(|(name, from)| Extra::Copy(name, from)));
    }
    extras.push(Extra::Json(MODEL_INDEX.to_owned(), index(original, config, &folders)));
    Ok(extras)
}

impl Extra {
    /// Returns the file's name, with its folder.
    pub fn name(&self) -> &str {
        let (Self::Json(name, _) | Self::Copy(name, _)) = self;
        name
    }

    /// Returns the contents of the file.
    ///
    /// # Errors
    /// Fails if the file to copy cannot be read.
    pub fn contents(&self) -> Result<Vec<u8>, CheckpointError> {
        match self {
            Self::Json(_, value) => {
                let mut text = serde_json::to_vec_pretty(value).expect("JSON values can be written");
                text.push(b'\n');
                Ok(text)
            }
            Self::Copy(_, from) => files::read(from, files::MAX_TEXT_BYTES).map_err(CheckpointError::read(from)),
        }
    }
}

/// Returns the `model_index.json` of a model with these folders of weights, based on that of the folder that the run started from.
fn index(mut index: Map<String, Value>, config: &Value, folders: &BTreeSet<&str>) -> Value {
    let class = |network: &Value| network["_class_name"].as_str().map(str::to_owned);
    let is_wan = config["transformer"]["_class_name"].as_str().is_some_and(|class| class.starts_with("Wan"));
    let pipeline = match config["pipeline"].as_str() {
        Some(pipeline) => pipeline,
        None if !is_wan => "QwenImagePipeline",
        None if config["transformer"]["in_channels"] == config["transformer"]["out_channels"] => "WanPipeline",
        None => "WanImageToVideoPipeline",
    };
    index.insert("_class_name".to_owned(), json!(pipeline));
    for Component { name, library, .. } in COMPONENTS {
        let pair = config.get(name).filter(|_| folders.contains(name)).map(|network| {
            let of_type = |(model_type, _): &&(&str, &str)| network["model_type"] == *model_type;
            let found = class(network).or(network["architectures"][0].as_str().map(str::to_owned));
            let found = found.or_else(|| CLASSES.iter().find(of_type).map(|(_, class)| (*class).to_owned()));
            json!([library, found])
        });
        let known = index.get(name).filter(|pair| pair[1].is_string());
        match (pair, known) {
            (Some(_), Some(_)) => {}
            (Some(pair), None) => drop(index.insert(name.to_owned(), pair)),
            // Its weights are elsewhere, or it has none.
            (None, _) if index.contains_key(name) || config.get(name).is_some() => {
                index.insert(name.to_owned(), json!([null, null]));
            }
            (None, _) => {}
        }
    }
    if let Some(class) = config[SCHEDULER.0]["_class_name"].as_str() {
        index.entry(SCHEDULER.0).or_insert_with(|| json!(["diffusers", class]));
    }
    // Settings of the pipeline, which overrides may have changed.
    for key in ["boundary_ratio", "expand_timesteps"] {
        if let Some(value) = config.get(key) {
            index.insert(key.to_owned(), value.clone());
        }
    }
    Value::Object(index)
}

#[cfg(test)]
#[path = "pipeline_tests.rs"]
mod tests;
