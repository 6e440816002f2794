//! The files of lerobot's processors: how a policy's inputs and outputs are made, and the statistics that they are normalized by.

use std::collections::HashMap;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Map, Value as Json, json};

use super::groot_files::step;
use super::spec::{ACTION, Family, STATE, SampleSpec, name_of, named};
use super::{groot_files, groot_groups};
use crate::config::{Normalization, Policy};
use crate::data::error::DataError;
use crate::data::lerobot::{FeatureStats, Stats};
use crate::files;

const BEFORE: &str = "policy_preprocessor";
const AFTER: &str = "policy_postprocessor";
const RENAME: &str = "rename_observations_processor";
/// FastWAM's step that makes signs of numbers of actions, which its `config.json` names as well.
const TOGGLE: &str = "fastwam_action_toggle_processor";
/// Bytes of a file of statistics.
const MAX_BYTES: u64 = 64 << 20;

/// The contents of the processor files of a model folder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Saved {
    pub stats: Stats,
    pub state: Option<Normalization>,
    pub action: Option<Normalization>,
    /// Three values: true if actions are relative, the words of names that stay absolute, and the names.
    pub relative: Option<(bool, Vec<String>, Vec<String>)>,
    /// True for the numbers of an action that are relative to the state, where groups of numbers say it (GR00T).
    pub mask: Option<Vec<bool>>,
    /// The policy's names of the data's features.
    pub renamed: Vec<(String, String)>,
    /// The domain of all samples.
    pub domain: Option<i64>,
    /// The names of all steps.
    pub steps: Vec<String>,
    /// The embodiment of the data, of a policy that has several, and its number where that is said.
    pub embodiment: Option<(String, Option<i64>)>,
}

/// Reads the preprocessor of the model in `folder`; `None` where it has none.
///
/// # Errors
/// Named by the file: wrong, or a step that is not implemented.
pub fn read(folder: &Path) -> Result<Option<Saved>, DataError> {
    let path = folder.join(format!("{BEFORE}.json"));
    if !path.is_file() {
        return Ok(None);
    }
    let bytes = files::read(&path, files::MAX_TEXT_BYTES).map_err(|error| DataError::read(&path, error))?;
    let json: Json = serde_json::from_slice(&bytes).map_err(|error| DataError::file(&path, error))?;
    let steps = json["steps"].as_array().ok_or_else(|| DataError::file(&path, "has no list `steps`"))?;
    let mut saved = Saved::default();
    for step in steps {
        saved.take(&path, step)?;
    }
    Ok(Some(saved))
}

impl Saved {
    /// Takes the settings of a step of the preprocessor at `path`.
    ///
    /// # Errors
    /// Named by the file: wrong, or a step that is not implemented.
    fn take(&mut self, path: &Path, step: &Json) -> Result<(), DataError> {
        let wrong = |reason: String| DataError::file(path, reason);
        let (name, config) = (step["registry_name"].as_str().unwrap_or_default(), &step["config"]);
        match name {
            "normalizer_processor" => self.take_normalizer(path, step)?,
            groot_files::PACK => self.take_pack(path, step)?,
            groot_files::ENCODE => groot_files::check_encode(config).map_err(wrong)?,
            "relative_actions_processor" => {
                let texts = |key: &str| -> Vec<String> {
                    let names = config[key].as_array().into_iter().flatten();
                    names.filter_map(Json::as_str).map(str::to_owned).collect()
                };
                self.relative = Some((config["enabled"] == true, texts("exclude_joints"), texts("action_names")));
            }
            RENAME => {
                let names = config["rename_map"].as_object().into_iter().flatten();
                self.renamed = names.filter_map(|(from, to)| Some((from.clone(), to.as_str()?.to_owned()))).collect();
            }
            "xvla_add_domain_id" => {
                let domain = config["domain_id"].as_i64();
                self.domain = Some(domain.ok_or_else(|| {
                    wrong(format!("domain_id must be a whole number, found {}", config["domain_id"]))
                })?);
            }
            "xvla_image_to_float" | "xvla_imagenet_normalize" if !config["image_keys"].is_null() => {
                return Err(wrong(format!(
                    "image_keys is {}, but must be null: all pictures are normalized",
                    config["image_keys"]
                )));
            }
            // What these do is done for every sample.
            "to_batch_processor"
            | "device_processor"
            | "tokenizer_processor"
            | "pi0_new_line_processor"
            | "xvla_image_to_float"
            | "xvla_imagenet_normalize"
            | "smolvla_new_line_processor"
            | "pi05_prepare_state_tokenizer_processor_step"
            | "pi0_fast_prepare_state_tokenizer_processor_step"
            | "action_tokenizer_processor" => {}
            other => return Err(wrong(format!("has the step {other:?}, which is not implemented"))),
        }
        self.steps.push(name.to_owned());
        Ok(())
    }

    fn take_normalizer(&mut self, path: &Path, step: &Json) -> Result<(), DataError> {
        let wrong = |reason: String| DataError::file(path, reason);
        check_normalizer(&step["config"]).map_err(wrong)?;
        let modes = &step["config"]["norm_map"];
        for (kind, mode) in [("STATE", &mut self.state), ("ACTION", &mut self.action)] {
            *mode = match &modes[kind] {
                // lerobot leaves a kind as it is that the map lacks.
                Json::Null => modes.is_object().then_some(Normalization::Identity),
                name => {
                    let found = name.as_str().and_then(named);
                    Some(found.ok_or_else(|| wrong(format!("norm_map.{kind} is {name}, which is not supported")))?)
                }
            };
        }
        // lerobot writes no file where there are no statistics.
        let needs = [self.state, self.action].iter().flatten().any(|mode| *mode != Normalization::Identity);
        match step["state_file"].as_str() {
            None if needs => return Err(wrong("normalizer_processor has no state_file".to_owned())),
            None => {}
            Some(file) => self.stats = stats_beside(path, file)?,
        }
        Ok(())
    }

    /// Takes GR00T's modes, which its folders all have, its embodiment, statistics and bounds.
    fn take_pack(&mut self, path: &Path, step: &Json) -> Result<(), DataError> {
        let wrong = |reason: String| DataError::file(path, reason);
        let config = &step["config"];
        groot_files::check_pack(config).map_err(wrong)?;
        (self.state, self.action) = (Some(Normalization::MinMax), Some(Normalization::MinMax));
        let tag = config["embodiment_tag"].as_str();
        self.embodiment = tag.map(|tag| (tag.to_owned(), config["embodiment_mapping"][tag].as_i64()));
        let file = step["state_file"].as_str();
        let file = file.ok_or_else(|| wrong(format!("{} has no state_file", groot_files::PACK)))?;
        self.stats = stats_beside(path, file)?;
        if let Some((mask, [low, high])) = groot_groups::read(config).map_err(wrong)? {
            let bounds = FeatureStats::from([("min".to_owned(), low), ("max".to_owned(), high)]);
            self.stats.0.insert("action".to_owned(), bounds);
            self.mask = Some(mask);
        }
        Ok(())
    }
}

/// # Errors
/// The reason: a normalizer does what is not implemented.
fn check_normalizer(config: &Json) -> Result<(), String> {
    let (eps, keys, pictures) = (&config["eps"], &config["normalize_observation_keys"], &config["norm_map"]["VISUAL"]);
    if !eps.is_null() && *eps != 1e-8 {
        return Err(format!("normalizer_processor: eps is {eps}, but only 1e-8 is implemented"));
    }
    if !pictures.is_null() && pictures != "IDENTITY" {
        return Err(format!("normalizer_processor: norm_map.VISUAL is {pictures}, but only IDENTITY is implemented"));
    }
    let has_state = keys.as_array().is_some_and(|keys| keys.iter().any(|key| key == "observation.state"));
    match keys.is_null() || has_state {
        true => Ok(()),
        false => Err(format!(
            "normalizer_processor: normalize_observation_keys is {:.200}, but a state that is not normalized is \
             implemented only as norm_map.STATE: IDENTITY",
            keys.to_string()
        )),
    }
}

/// Checks that what a model in `folder` does behind its policy is what is done here.
///
/// # Errors
/// Named by the file: wrong, or a step that is not implemented.
pub fn check_after(folder: &Path) -> Result<(), DataError> {
    let path = folder.join(format!("{AFTER}.json"));
    if !path.is_file() {
        return Ok(());
    }
    let bytes = files::read(&path, files::MAX_TEXT_BYTES).map_err(|error| DataError::read(&path, error))?;
    let json: Json = serde_json::from_slice(&bytes).map_err(|error| DataError::file(&path, error))?;
    let wrong = |reason: String| DataError::file(&path, reason);
    for step in json["steps"].as_array().into_iter().flatten() {
        match step["registry_name"].as_str().unwrap_or_default() {
            name @ (groot_files::UNPACK | groot_files::DECODE) => {
                groot_files::check_restored(name, &step["config"]).map_err(wrong)?;
            }
            "unnormalizer_processor" | "absolute_actions_processor" | "device_processor" | TOGGLE => {}
            other => return Err(wrong(format!("has the step {other:?}, which is not implemented"))),
        }
    }
    Ok(())
}

/// Reads the statistics in `file`, which is in the folder of the preprocessor at `path`.
fn stats_beside(path: &Path, file: &str) -> Result<Stats, DataError> {
    match files::is_inner_name(file) {
        true => read_stats(&path.with_file_name(file)),
        false => Err(DataError::file(path, format!("state_file {file:?} is not in the folder"))),
    }
}

fn read_stats(path: &Path) -> Result<Stats, DataError> {
    let bytes = files::read(path, MAX_BYTES).map_err(|error| DataError::read(path, error))?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|error| DataError::file(path, error))?;
    let mut stats = Stats::default();
    for (name, tensor) in tensors.tensors() {
        let (key, stat) = name.rsplit_once('.').unwrap_or((&name, ""));
        let values = match tensor.dtype() {
            Dtype::F32 => tensor.data().as_chunks().0.iter().map(|&it| f64::from(f32::from_le_bytes(it))).collect(),
            Dtype::F64 => tensor.data().as_chunks().0.iter().map(|&it| f64::from_le_bytes(it)).collect(),
            Dtype::I64 => tensor.data().as_chunks().0.iter().map(|&it| i64::from_le_bytes(it) as f64).collect(),
            other => {
                return Err(DataError::file(path, format!("{name} has the type {other:?}, which is not supported")));
            }
        };
        stats.0.entry(key.to_owned()).or_default().insert(stat.to_owned(), values);
    }
    Ok(stats)
}

/// Returns the processor files of a policy, by name. `mask` says which numbers of an action are relative, and `settings` what its data
/// calls its features.
///
/// # Errors
/// The reason: the statistics cannot be written.
pub fn write(
    spec: &SampleSpec,
    stats: &Stats,
    mask: &[bool],
    settings: &Policy,
) -> Result<Vec<(String, Vec<u8>)>, String> {
    let mut files = Vec::new();
    for (name, mut steps) in [(BEFORE, before(spec, stats, mask)), (AFTER, after(spec, stats, mask))] {
        for (at, step) in steps.iter_mut().enumerate() {
            let kind = step["registry_name"].as_str().unwrap_or_default().to_owned();
            if kind.ends_with("normalizer_processor") || groot_files::HAVE_STATS.contains(&kind.as_str()) {
                let file = format!("{name}_step_{at}_{kind}.safetensors");
                step["state_file"] = file.clone().into();
                files.push((file, tensors(stats)?));
            }
            if kind == RENAME {
                step["config"]["rename_map"] = rename_map(settings);
            }
        }
        let text =
            serde_json::to_vec_pretty(&json!({ "name": name, "steps": steps })).map_err(|error| error.to_string())?;
        files.push((format!("{name}.json"), text));
    }
    Ok(files)
}

/// Returns the steps before the policy, in its family's order.
fn before(spec: &SampleSpec, stats: &Stats, mask: &[bool]) -> Vec<Json> {
    let relative = step(
        "relative_actions_processor",
        json!({ "enabled": spec.relative, "exclude_joints": spec.exclude, "action_names": names(&spec.action_names) }),
    );
    let pads_left = spec.xvla.as_ref().is_some_and(|rules| rules.pads_left);
    let padding_side = if pads_left { "left" } else { "right" };
    let tokenizer = step(
        "tokenizer_processor",
        json!({
            "max_length": spec.prompt.max_tokens, "task_key": "task", "padding_side": padding_side,
            "padding": spec.prompt.padding, "truncation": true, "tokenizer_name": spec.prompt.tokenizer,
        }),
    );
    let rename = step(RENAME, json!({ "rename_map": {} }));
    let batch = step("to_batch_processor", json!({}));
    let features = inputs(spec).into_iter().chain(outputs(spec)).collect();
    let normalize = step("normalizer_processor", normalizer(spec, features));
    match spec.family {
        Family::Pi05 => {
            let digits = step("pi05_prepare_state_tokenizer_processor_step", json!({}));
            vec![rename, batch, relative, normalize, digits, tokenizer, device("cpu")]
        }
        Family::Pi0Fast => {
            let digits = step("pi0_fast_prepare_state_tokenizer_processor_step", json!({}));
            let tokens = json!({
                "trust_remote_code": true, "max_action_tokens": spec.action_tokens.max_tokens,
                "action_tokenizer_name": spec.action_tokens.tokenizer,
            });
            let tokens = step("action_tokenizer_processor", tokens);
            vec![rename, batch, relative, normalize, digits, tokenizer, tokens, device("cpu")]
        }
        Family::Pi0 => {
            let line = step("pi0_new_line_processor", json!({}));
            vec![rename, batch, line, tokenizer, device("cpu"), relative, normalize]
        }
        Family::Xvla => {
            let keys = json!({ "image_keys": null });
            let to_float = step("xvla_image_to_float", json!({ "image_keys": null, "validate_range": true }));
            let domain = spec.xvla.as_ref().map_or(0, |rules| rules.domain);
            let domain = step("xvla_add_domain_id", json!({ "domain_id": domain }));
            let imagenet = step("xvla_imagenet_normalize", keys);
            vec![rename, batch, tokenizer, to_float, imagenet, domain, device("cpu"), normalize]
        }
        Family::SmolVla => {
            // lerobot's own files have no step for relative actions: theirs are never so.
            let line = step("smolvla_new_line_processor", json!({}));
            let relative = spec.relative.then_some(relative);
            [rename, batch, line, tokenizer, device("cpu")].into_iter().chain(relative).chain([normalize]).collect()
        }
        Family::FastWam => {
            let relative = spec.relative.then_some(relative);
            [rename, batch, device("cpu")].into_iter().chain(relative).chain([normalize]).collect()
        }
        Family::Groot => {
            let encode = groot_files::encode(spec);
            let steps = [rename, batch, groot_files::pack(spec, stats, mask)];
            steps.into_iter().chain(encode).chain([device("cpu")]).collect()
        }
    }
}

/// Returns the steps behind the policy, which restore actions.
fn after(spec: &SampleSpec, stats: &Stats, mask: &[bool]) -> Vec<Json> {
    let absolute = step("absolute_actions_processor", json!({ "enabled": spec.relative }));
    let has_step = match spec.family {
        Family::Pi0 | Family::Pi05 | Family::Pi0Fast => true,
        Family::SmolVla | Family::FastWam => spec.relative,
        Family::Groot | Family::Xvla => false,
    };
    let restore = match spec.family {
        Family::Groot if spec.relative => groot_files::decode(spec, stats, mask),
        Family::Groot => groot_files::unpack(spec),
        _ => step("unnormalizer_processor", normalizer(spec, outputs(spec))),
    };
    let absolute = has_step.then_some(absolute);
    let toggled = spec.frames.as_ref().map(|frames| &frames.toggled).filter(|toggled| !toggled.is_empty());
    let toggle = toggled.map(|toggled| step(TOGGLE, json!({ "toggle_dimensions": toggled })));
    std::iter::once(restore).chain(absolute).chain(toggle).chain([device("cpu")]).collect()
}

fn device(name: &str) -> Json {
    step("device_processor", json!({ "device": name, "float_dtype": null }))
}

fn normalizer(spec: &SampleSpec, features: Map<String, Json>) -> Json {
    let modes = json!({
        "VISUAL": "IDENTITY",
        "STATE": name_of(spec.state_normalization),
        "ACTION": name_of(spec.action_normalization),
    });
    json!({ "eps": 1e-8, "features": features, "norm_map": modes })
}

/// Returns the shapes of pictures and states.
fn inputs(spec: &SampleSpec) -> Map<String, Json> {
    let [rows, columns] = spec.pictures.resolution;
    let mut inputs: Map<String, Json> = Map::new();
    for camera in &spec.cameras {
        inputs.insert(camera.clone(), feature("VISUAL", vec![3, rows, columns]));
    }
    inputs.insert("observation.state".to_owned(), feature("STATE", vec![spec.state_dim]));
    inputs
}

/// Returns the shape of an action.
fn outputs(spec: &SampleSpec) -> Map<String, Json> {
    [("action".to_owned(), feature("ACTION", vec![spec.action_dim]))].into_iter().collect()
}

fn feature(kind: &str, shape: Vec<usize>) -> Json {
    json!({ "type": kind, "shape": shape })
}

fn names(names: &[String]) -> Json {
    if names.is_empty() { Json::Null } else { json!(names) }
}

fn tensors(stats: &Stats) -> Result<Vec<u8>, String> {
    let flat = |(key, feature): (&String, &FeatureStats)| {
        let of = |(stat, values): (&String, &Vec<f64>)| {
            let bytes: Vec<u8> = values.iter().flat_map(|&value| (value as f32).to_le_bytes()).collect();
            (format!("{key}.{stat}"), values.len(), bytes)
        };
        feature.iter().map(of).collect::<Vec<_>>()
    };
    let all: Vec<(String, usize, Vec<u8>)> = stats.0.iter().flat_map(flat).collect();
    let mut views = HashMap::new();
    for (name, len, bytes) in &all {
        let view = TensorView::new(Dtype::F32, vec![*len], bytes).map_err(|error| error.to_string())?;
        views.insert(name.clone(), view);
    }
    safetensors::serialize(views, None).map_err(|error| error.to_string())
}

/// Returns whether a file of a model's folder is one of a processor's: a checkpoint has its own.
pub fn is_processor_file(name: &str) -> bool {
    name.starts_with(BEFORE) || name.starts_with(AFTER) || name == super::kept::FILE || name == super::delay::FILE
}

/// Returns the policy's names of a run's data, as lerobot's preprocessor has them: it renames observations by them. That of actions is
/// read here alone.
fn rename_map(settings: &Policy) -> Json {
    let cameras = settings.cameras.iter().map(|(key, name)| (key.as_str(), name.as_str()));
    let others = [(settings.state.as_str(), STATE), (settings.action.as_str(), ACTION)];
    let renamed = cameras.chain(others).filter(|(key, name)| key != name);
    Json::Object(renamed.map(|(key, name)| (key.to_owned(), name.into())).collect())
}
