//! A Megatron-Energon data set: the folder `.nv-meta` says which shards are for training, how many samples each has and
//! what their fields are.

use std::path::Path;

use serde_json::Value as Json;

use super::fields::{FieldMap, is_known};
use super::layout::RecordLayout;
use super::paths::braces;
use super::shard::Shard;
use crate::data::error::DataError;
use crate::data::locator::is_remote;
use crate::files;

/// The description that the folder gives of its samples.
pub struct Energon {
    pub shards: Vec<Shard>,
    /// Samples of each shard.
    pub counts: Vec<u64>,
    /// `None`: as the samples show.
    pub layout: Option<RecordLayout>,
}

const META: &str = ".nv-meta";

/// Returns whether a path is such a folder.
pub fn is_energon(path: &str) -> bool {
    !is_remote(path) && Path::new(path).join(META).is_dir()
}

/// # Errors
/// Named by the file: missing, no YAML, shards that it does not count.
pub fn open(path: &str) -> Result<Energon, DataError> {
    let folder = path.trim_end_matches('/');
    let at = |name: &str| format!("{folder}/{META}/{name}");
    let fail = |name: &str, reason: &str| DataError::file(Path::new(&at(name)), reason);
    let info = match read(&at(".info.json"))? {
        Some(info) => info,
        None => read(&at(".info.yaml"))?.ok_or_else(|| fail(".info.yaml", "is missing: run `energon prepare`"))?,
    };
    let counts = info["shard_counts"].as_object().ok_or_else(|| fail(".info", "has no shard_counts"))?;
    let split = read(&at("split.yaml"))?.unwrap_or_default();
    let expanded = |list: &Vec<Json>| -> Result<Vec<String>, DataError> {
        let text = |name: &Json| match name.as_str() {
            Some(name) => braces(name),
            None => Err(format!("has {name:.40} where a name of a shard must be")),
        };
        let names: Result<Vec<_>, _> = list.iter().map(text).collect();
        Ok(names.map_err(|reason| fail("split.yaml", &reason))?.concat())
    };
    let names = match split["split_parts"]["train"].as_array() {
        Some(parts) => expanded(parts)?,
        None => counts.keys().cloned().collect(),
    };
    let excluded = split["exclude"].as_array().map_or_else(|| Ok(Vec::new()), expanded)?;
    let is_sample = |name: &&String| {
        names.iter().any(|shard| name.strip_prefix(shard.as_str()).is_some_and(|rest| rest.starts_with('/')))
    };
    if let Some(sample) = excluded.iter().find(is_sample) {
        let reason =
            format!("excludes the sample {sample}; only whole shards can be excluded: write its shard without it");
        return Err(fail("split.yaml", &reason));
    }
    let (mut shards, mut lens) = (Vec::new(), Vec::new());
    for name in names.iter().filter(|name| !excluded.contains(name)) {
        let count = counts.get(name).and_then(Json::as_u64);
        let count = count.ok_or_else(|| fail(".info", &format!("does not count {name} of split.yaml")))?;
        shards.push(Shard::stat(&format!("{folder}/{name}"))?);
        lens.push(count);
    }
    if shards.is_empty() {
        return Err(fail("split.yaml", "has no shards for training"));
    }
    Ok(Energon { shards, counts: lens, layout: layout(&at("dataset.yaml"))? })
}

fn layout(path: &str) -> Result<Option<RecordLayout>, DataError> {
    let Some(dataset) = read(path)? else { return Ok(None) };
    if let Some(loader) = dataset["sample_loader"].as_str() {
        tracing::warn!("{path}: sample_loader {loader} is Python and is not run: samples are read by what they have");
    }
    let Some(map) = dataset["field_map"].as_object() else { return Ok(None) };
    let text = |(field, place): (&String, &Json)| match place.as_str() {
        Some(place) => Ok((field.clone(), place.to_owned())),
        None => Err(DataError::file(Path::new(path), format!("maps the field {field} to {place:.40}, not to a text"))),
    };
    let map: FieldMap = map.iter().map(text).collect::<Result<_, _>>()?;
    match is_known(&map) {
        true => Ok(Some(RecordLayout::Fields(map))),
        false => {
            let fields: Vec<&String> = map.keys().collect();
            let reason = format!(
                "maps the fields {fields:?}; supported: image and caption, image with context and answers, text, and \
                 crude samples"
            );
            Err(DataError::file(Path::new(path), reason))
        }
    }
}

/// Reads a JSON or YAML file; `None` where there is none.
fn read(path: &str) -> Result<Option<Json>, DataError> {
    let fail = |reason: &dyn std::fmt::Display| DataError::file(Path::new(path), reason);
    let bytes = if is_remote(path) {
        #[cfg(feature = "cloud")]
        match super::remote::get(path, files::MAX_TEXT_BYTES) {
            Ok(bytes) => bytes,
            Err(_) => return Ok(None),
        }
        #[cfg(not(feature = "cloud"))]
        return Ok(None);
    } else {
        let bytes = files::if_there(files::read(Path::new(path), files::MAX_TEXT_BYTES));
        match bytes.map_err(|error| DataError::read(Path::new(path), error))? {
            Some(bytes) => bytes,
            None => return Ok(None),
        }
    };
    let text = String::from_utf8(bytes).map_err(|error| fail(&error))?;
    match path.ends_with(".json") {
        true => serde_json::from_str(&text).map(Some).map_err(|error| fail(&error)),
        false => serde_saphyr::from_str(&text).map(Some).map_err(|error| fail(&error)),
    }
}
