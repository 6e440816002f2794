//! Folders in Diffusers' layout as one JSON: `model_index.json` with the config of each network put into it, the transformer's
//! folder alone, or one file with a transformer's weights.

use crate::model::error::FolderError;
use crate::model::single_file;
use loongforge_core::data::{COMPONENTS, Component, DIFFUSION, MODEL_INDEX, is_diffusion};
use loongforge_core::files;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Pipelines whose models are trained here.
const PIPELINES: [&str; 7] = [
    "WanPipeline",
    "WanImageToVideoPipeline",
    "WanVideoToVideoPipeline",
    "QwenImagePipeline",
    "QwenImageImg2ImgPipeline",
    "QwenImageEditPipeline",
    "QwenImageEditPlusPipeline",
];

/// Classes of the networks that Diffusers defines. `PixelLatents` is ours: no autoencoder, the pixels are the latents.
const CLASSES: [(&str, &[&str]); 3] = [
    ("transformer", &["WanTransformer3DModel", "QwenImageTransformer2DModel"]),
    ("transformer_2", &["WanTransformer3DModel"]),
    ("vae", &["AutoencoderKLWan", "AutoencoderKLQwenImage", "PixelLatents"]),
];

/// Models of the same families that need parts which are not there, by what their classes' names contain.
const OTHER_KINDS: [&str; 8] =
    ["Layered", "VACE", "Animate", "S2V", "SpeechToVideo", "ControlNet", "Inpaint", "Camera"];

/// The class of the transformer in Wan's own releases.
const ORIGINAL_WAN: &str = "WanModel";

/// Files of a diffusion model's settings that are not networks': the key in the JSON, the folder and the file.
pub(crate) const SCHEDULER: (&str, &str) = ("scheduler", "scheduler/scheduler_config.json");

/// Reads a diffusion model's folder or file as one JSON; `None`: the path is of another kind of model. The folders of networks for
/// which `is_replaced` are not read.
///
/// # Errors
/// A file is missing or not JSON, or a pipeline or class is not one that is trained here.
pub(crate) fn read(path: &Path, is_replaced: &dyn Fn(&str) -> bool) -> Result<Option<Value>, FolderError> {
    if path.is_file() {
        let transformer = single_file::config(path, None)?;
        return Ok(Some(json!({"model_type": DIFFUSION, "transformer": transformer})));
    }
    let own = path.join("config.json");
    let config = if own.is_file() { read_json(&own)? } else { Value::Null };
    if is_diffusion(&config) {
        return Ok(Some(config));
    }
    if path.join(MODEL_INDEX).is_file() {
        return read_index(path, is_replaced).map(Some);
    }
    let Some(class) = config["_class_name"].as_str() else { return Ok(None) };
    if class == ORIGINAL_WAN {
        expect_no_pickles(path, is_replaced)?;
        let transformer = single_file::config(path, config["num_heads"].as_i64())?;
        return Ok(Some(json!({"model_type": DIFFUSION, "transformer": transformer})));
    }
    let name = CLASSES.iter().find(|(_, classes)| classes.contains(&class)).map(|(name, _)| *name);
    let name = name.ok_or_else(|| unknown(path, "_class_name", class))?;
    let network = checked(path, name, config)?;
    Ok(Some(json!({"model_type": DIFFUSION, name: network})))
}

fn read_index(folder: &Path, is_replaced: &dyn Fn(&str) -> bool) -> Result<Value, FolderError> {
    let path = folder.join(MODEL_INDEX);
    let Value::Object(index) = read_json(&path)? else {
        return Err(unknown(&path, MODEL_INDEX, "no object"));
    };
    let pipeline = index.get("_class_name").and_then(Value::as_str).unwrap_or_default();
    if !PIPELINES.contains(&pipeline) {
        return Err(unknown(&path, "_class_name", pipeline));
    }
    let mut json = Map::new();
    json.insert("model_type".to_owned(), json!(DIFFUSION));
    json.insert("pipeline".to_owned(), json!(pipeline));
    // Settings of the pipeline itself, such as `boundary_ratio`; parts are pairs of a library and a class.
    let settings = index.iter().filter(|(key, value)| !key.starts_with('_') && !value.is_array() && !value.is_null());
    json.extend(settings.map(|(key, value)| (key.clone(), value.clone())));
    for Component { name, .. } in COMPONENTS {
        let is_there = index.get(name).and_then(|part| part.get(1)).is_some_and(Value::is_string);
        if !is_there || is_replaced(name) {
            continue;
        }
        let config = read_json(&folder.join(name).join("config.json"))?;
        json.insert(name.to_owned(), checked(&folder.join(name), name, config)?);
    }
    let scheduler = folder.join(SCHEDULER.1);
    if scheduler.is_file() {
        json.insert(SCHEDULER.0.to_owned(), read_json(&scheduler)?);
    }
    Ok(Value::Object(json))
}

/// Returns the config of a network whose class is one that is trained here, or that says its `model_type`.
fn checked(folder: &Path, name: &str, mut config: Value) -> Result<Value, FolderError> {
    let class = config["_class_name"].as_str().unwrap_or_default();
    let known =
        CLASSES.iter().find(|(network, _)| *network == name).is_none_or(|(_, classes)| classes.contains(&class));
    if !known {
        return Err(unknown(folder, "_class_name", class));
    }
    if config["use_layer3d_rope"] == true || config["use_additional_t_cond"] == true {
        return Err(unknown(folder, "model", "Qwen-Image-Layered"));
    }
    // Null are as many channels as there are of the input, which are 16 where they are not named.
    if class == "WanTransformer3DModel" && config.get("out_channels").is_some_and(Value::is_null) {
        let inputs = config.get("in_channels").filter(|inputs| !inputs.is_null()).cloned();
        config["out_channels"] = inputs.unwrap_or(json!(16));
    }
    Ok(config)
}

fn unknown(path: &Path, key: &'static str, found: &str) -> FolderError {
    let known = match OTHER_KINDS.iter().find(|kind| found.contains(**kind)) {
        Some(kind) => format!("{kind} models are not trained here; those that are: {}", PIPELINES.join(", ")),
        None => format!("only the pipelines {}, and their transformers alone, are supported", PIPELINES.join(", ")),
    };
    FolderError::Pipeline { path: path.to_owned(), key, found: found.to_owned(), known }
}

/// Refuses a release whose other networks are pickles, unless they are loaded from elsewhere.
fn expect_no_pickles(folder: &Path, is_replaced: &dyn Fn(&str) -> bool) -> Result<(), FolderError> {
    if ["vae", "text_encoder"].into_iter().all(is_replaced) {
        return Ok(());
    }
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let names = names.filter_map(|name| name.into_string().ok());
    let mut pickles: Vec<String> =
        names.filter(|name| [".pth", ".pt", ".bin"].iter().any(|end| name.ends_with(end))).collect();
    pickles.sort();
    if pickles.is_empty() {
        Ok(())
    } else {
        Err(FolderError::Pickles { path: folder.to_owned(), names: pickles.join(", ") })
    }
}

pub(crate) fn read_json(path: &Path) -> Result<Value, FolderError> {
    let path = path.to_owned();
    let text = files::read_text(&path).map_err(|source| FolderError::Read { path: path.clone(), source })?;
    serde_json::from_str(&text).map_err(|source| FolderError::Json { path, source })
}

#[cfg(test)]
#[path = "diffusers_tests.rs"]
mod tests;
