//! The Hugging Face folder of a model: its `config.json` under the run's overrides, read before anything is built.

use crate::model::alike;
use crate::model::composite::{fit_deepstack, has_parts, network_of, put_image_token, put_parts, put_text, section_of};
use crate::model::diffusers::{self, read_json};
use crate::model::error::FolderError;
use crate::model::hub::{model_here, resolve_config, resolve_model};
use loongforge_core::config::{Experts, Model, ModelKind, Part, RunConfig, Source, Weights, code};
use loongforge_core::data::{
    DIFFUSION, DataError, MediaDecoder, ModelCard, Processor, ProcessorFolders, ProcessorOptions, SampleMaker, Section,
    TEXT_TOKENIZER, Tokenizer, frozen_towers, is_diffusion, open_maker,
};
use loongforge_core::schedule::{AutoShift, FlowShape, ModelShape};
use loongforge_torch::model::ModelConfig;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tch::Kind;

const TOKENIZER: &str = "tokenizer.json";
/// Differences that one error names.
const MAX_DIFFERENCES: usize = 4;

/// A model folder whose configuration was understood.
#[derive(Clone, Debug)]
pub struct ModelFolder {
    /// Tokenizer and chat template are here.
    pub path: PathBuf,
    /// The preprocessor configs are here.
    pub media_path: PathBuf,
    /// The file of the text tower's own tokenizer; `None`: it is the model's, or there is no such tower.
    pub text_tokenizer: Option<PathBuf>,
    /// `config.json` with the overrides applied, as a checkpoint will hold it.
    pub json: Value,
    pub config: ModelConfig,
    /// Holds what was made of the model's config that its user should know, a sentence each.
    pub notes: Vec<String>,
}

impl ModelFolder {
    /// Reads `model.config` or the `config.json` of `model.load`, puts the parts' configs into it, and applies
    /// `model.overrides`, whose keys may be dotted.
    ///
    /// # Errors
    /// The file is missing or not JSON, an override names no key, or the model is not one we train.
    pub fn open(model: &Model) -> Result<Self, FolderError> {
        let load = model.load.as_ref().map(|source| locate("model.load", source)).transpose()?;
        let mut json = match (&load, model.config.is_empty()) {
            (_, false) => Value::Object(model.config.clone()),
            (Some(folder), true) => read(folder, &|network| replaces(model, network))?,
            (None, true) if has_parts(model) => Value::Object(serde_json::Map::new()),
            (None, true) => return Err(FolderError::Missing { key: "model.load" }),
        };
        let mut notes = Vec::new();
        if has_parts(model) {
            put_parts(&mut json, model, |key, part| match &part.load {
                Some(source) => read(&locate(key, source)?, &|_| false),
                None => Err(FolderError::Missing { key }),
            })?;
            notes.extend(fit_deepstack(&mut json, model));
        }
        put_text(&mut json, model)?;
        for (key, part) in model.parts() {
            for (inner, value) in &part.overrides {
                let section = section_of(&mut json, key).ok_or(FolderError::NoSection { key })?;
                apply(section, inner, value).map_err(|_| FolderError::UnknownPartKey { key, inner: inner.clone() })?;
            }
        }
        let path = match model.tokenizer_source() {
            Some(source) => locate("model.tokenizer", source)?,
            None => return Err(FolderError::Missing { key: "model.tokenizer" }),
        };
        for (key, value) in &model.overrides {
            apply(&mut json, key, value)?;
        }
        if model.resize_embeddings {
            grow_vocabulary(&mut json, &path)?;
        }
        notes.extend(crate::model::composite::ignored(&json));
        let mut folder = Self { notes, ..Self::understand(&path, json)? };
        if let Some(one @ (Experts::High | Experts::Low)) = model.experts {
            folder.config = folder.config.with_one_transformer(one == Experts::High);
        }
        if let Some(encoder) = &model.image_encoder.load {
            let encoder = locate("model.image_encoder.load", encoder)?;
            if has_preprocessor(&encoder) {
                folder.media_path = encoder;
            }
        }
        if let Some(source) = &model.text.tokenizer {
            folder.text_tokenizer = Some(locate("model.text.tokenizer", source)?.join(TOKENIZER));
        } else if let Some(source) = &model.text_encoder.load {
            // No other tokenizer would give the ids that the tower knows.
            let encoder = locate("model.text_encoder.load", source)?;
            let found =
                [TEXT_TOKENIZER, TOKENIZER].map(|name| encoder.join(name)).into_iter().find(|file| file.is_file());
            folder.text_tokenizer = Some(found.ok_or(FolderError::Missing { key: "model.text.tokenizer" })?);
        }
        // Most published configs name heads whose weights a checkpoint may lack: they are trained where a run asks.
        let num_heads = model.mtp.num_layers.unwrap_or(0);
        if num_heads > 0
            && folder.config.edit_decoder(|it| it.enable_mtp(num_heads, model.mtp.loss_weight)) != Some(true)
        {
            return Err(FolderError::NoMtp { num_heads, model_type: folder.config.model_type });
        }
        let moe = &model.moe;
        let balanced = folder.config.edit_decoder(|decoder| {
            let balance = &mut decoder.balance;
            for (value, wanted) in [
                (&mut balance.aux_loss_coef, moe.aux_loss_coef),
                (&mut balance.z_loss_coef, moe.z_loss_coef),
                (&mut balance.bias_update_rate, moe.bias_update_rate),
            ] {
                *value = wanted.unwrap_or(*value);
            }
        });
        if balanced.is_none() && [moe.aux_loss_coef, moe.z_loss_coef, moe.bias_update_rate].iter().any(Option::is_some)
        {
            return Err(FolderError::NoRouters { model_type: folder.config.model_type });
        }
        if let Some(coef) = model.indexer.loss_coef
            && folder.config.edit_decoder(|it| it.train_indexers(coef, model.indexer.warm_up)) != Some(true)
        {
            return Err(FolderError::NoIndexer { model_type: folder.config.model_type });
        }
        Ok(folder)
    }

    /// Works like [`ModelFolder::open`], settles what `config.model` does not say, and learns what `config.train.preference` says.
    ///
    /// # Errors
    /// See [`ModelFolder::open`] and [`ModelFolder::with_preference`].
    pub fn open_settled(config: &mut RunConfig) -> Result<Self, FolderError> {
        let model = &mut config.model;
        let folder = Self::open(model)?;
        model.settle(folder.model_kind());
        if let Some(policy) = folder.config.foundation.as_policy() {
            let frozen = frozen_towers(&folder.json).map(|frozen| frozen || policy.freezes_tower());
            let parts = [&mut model.image_encoder, &mut model.image_projector].into_iter().zip(frozen);
            parts.filter(|(_, frozen)| *frozen).for_each(|(part, _)| {
                part.freeze.get_or_insert(true);
            });
        }
        let folder = folder.with_token_training(&config.train, config.run.seed)?;
        match &config.train.preference {
            Some(preference) => folder.with_preference(&config.model, preference),
            None => Ok(folder),
        }
    }

    /// Returns whether the model predicts tokens, the noise of pictures, or actions of robots.
    pub fn model_kind(&self) -> ModelKind {
        ModelCard::of(&self.json).kind()
    }

    /// Sees to it that a checkpoint is of this model.
    ///
    /// # Errors
    /// It is of another: the keys of `config.json` that differ.
    pub fn expect_same(&self, checkpoint: &Self) -> Result<(), FolderError> {
        let mut differences = Vec::new();
        compare("", &checkpoint.json, &self.json, &mut differences);
        if differences.is_empty() {
            return Ok(());
        }
        if differences.len() > MAX_DIFFERENCES {
            let more = differences.len() - MAX_DIFFERENCES;
            differences.truncate(MAX_DIFFERENCES);
            differences.push(format!("and {more} more"));
        }
        Err(FolderError::OtherModel { path: checkpoint.path.clone(), differences })
    }

    /// Reads a checkpoint or any other model folder as it is.
    ///
    /// # Errors
    /// See [`ModelFolder::open`].
    pub fn open_plain(path: &Path) -> Result<Self, FolderError> {
        Self::understand(path, read(path, &|_| false)?)
    }

    fn understand(path: &Path, mut json: Value) -> Result<Self, FolderError> {
        put_image_token(&mut json, path);
        // What the pipeline reads is not in published configs.
        if json["text"].is_null()
            && let Some(text) = ModelCard::of(&json).text_defaults()
        {
            json["text"] = text;
        }
        let is_composed = json.get("model_type").is_some_and(|name| name == "loongforge_vlm" || name == DIFFUSION);
        let wrong = |source| match is_composed {
            true => FolderError::Parts { code: code::MODEL_PARTS, source },
            false => match alike::hint(path, &json, &source) {
                Some(hint) => FolderError::Alike { path: path.join("config.json"), what: format!("{source}; {hint}") },
                None => FolderError::Model { path: path.join("config.json"), source },
            },
        };
        let config = ModelConfig::from_hf(&json).map_err(wrong)?;
        let text_tokenizer = find_text_tokenizer(path, &json);
        let (path, media_path) = (path.to_owned(), find_media(path, &json));
        Ok(Self { path, media_path, text_tokenizer, json, config, notes: Vec::new() })
    }

    /// The kind that `config.json` names for the weights, where parameters can be of it; else float32.
    pub fn kind(&self) -> Kind {
        let holders = ModelCard::of(&self.json).of_text();
        let named = holders.flat_map(|keys| ["dtype", "torch_dtype"].map(|key| keys[key].as_str())).flatten().next();
        if named == Some("bfloat16") { Kind::BFloat16 } else { Kind::Float }
    }

    /// Returns what makes samples for this model, which predicts tokens.
    ///
    /// # Errors
    /// As [`Processor::open`].
    pub fn processor(&self, options: &ProcessorOptions) -> Result<Processor, DataError> {
        let folders =
            ProcessorFolders { model: &self.path, media: &self.media_path, text: self.text_tokenizer.as_deref() };
        Processor::open_from(folders, &self.json, options)
    }

    /// Returns what makes samples for this model, whatever it learns; files are decoded by `decoder`.
    ///
    /// # Errors
    /// See [`open_maker`].
    pub fn maker(
        &self,
        options: &ProcessorOptions,
        decoder: Arc<dyn MediaDecoder>,
    ) -> Result<Box<dyn SampleMaker>, DataError> {
        let folders =
            ProcessorFolders { model: &self.path, media: &self.media_path, text: self.text_tokenizer.as_deref() };
        open_maker(folders, &self.json, options, decoder)
    }

    /// Returns what planning needs to know of the model; features and pixels are float32 or narrower on the wire.
    pub fn shape(&self) -> ModelShape {
        let foundation = self.config.foundation.shape();
        let towers = &self.config.towers;
        let patch_dim = towers.iter().map(|it| it.family.patch_dim() as u64).max().unwrap_or(0);
        let widths = self.config.inputs().iter().map(|input| input.num_tensors as u64 * input.width as u64);
        let bytes = size_of::<f32>() as u64;
        ModelShape {
            hidden_size: foundation.width as u64,
            even_length: foundation.even_length as u64,
            towers: towers.iter().map(|it| it.tower).collect(),
            bytes_per_patch: patch_dim * bytes,
            bytes_per_feature: widths.max().unwrap_or(0) * bytes,
            flow: flow_shape(&self.json),
        }
    }
}

/// Returns what planning needs to know of a diffusion model: the boundary of its transformers, and the line of its scheduler.
fn flow_shape(json: &Value) -> Option<FlowShape> {
    let ModelKind::Diffusion { two } = ModelCard::of(json).kind() else { return None };
    let own = |key: &str| json["scheduler"][key].as_f64();
    let line = || {
        let from = (own("base_image_seq_len")?, own("base_shift")?);
        Some(AutoShift { from, to: (own("max_image_seq_len")?, own("max_shift")?) })
    };
    let boundary = json["boundary_ratio"].as_f64().filter(|_| two);
    Some(FlowShape { boundary, auto_shift: line().unwrap_or(AutoShift::QWEN) })
}

/// Fetches whatever of the model is on the hub, weights included where they are loaded: every source becomes a directory.
///
/// # Errors
/// The hub has no such model, or it cannot be fetched.
pub fn fetch(model: &mut Model) -> Result<(), FolderError> {
    settle(model, |key, source, weights| {
        let resolve = if weights { resolve_model } else { resolve_config };
        resolve(source).map(Some).map_err(|source| FolderError::Hub { key, source })
    })
}

/// Names the directories of what is here; the keys of weights that are on the hub and were not fetched. Adapters that were
/// not are left out of `model`.
pub fn without_fetching(model: &mut Model) -> Vec<&'static str> {
    let mut missing = Vec::new();
    let here = |key, source: &str, weights: bool| {
        let here = model_here(source);
        missing.extend((weights && here.is_none()).then_some(key));
        Ok(here)
    };
    settle(model, here).expect("nothing is fetched");
    for part in [
        &mut model.image_encoder,
        &mut model.image_projector,
        &mut model.audio_encoder,
        &mut model.audio_projector,
        &mut model.text_encoder,
        &mut model.text_projector,
        &mut model.foundation,
    ] {
        if let Some(lora) = &mut part.lora {
            lora.adapter = lora.adapter.take().filter(|adapter| !adapter.is_elsewhere());
        }
    }
    missing
}

/// Puts a directory in the place of every hub id for which `find` has one; it hears of the key, the id, and whether
/// weights are needed.
fn settle(
    model: &mut Model,
    mut find: impl FnMut(&'static str, &str, bool) -> Result<Option<PathBuf>, FolderError>,
) -> Result<(), FolderError> {
    let weights = model.weights == Weights::Load;
    let sources = [
        ("model.load", &mut model.load, weights),
        ("model.tokenizer", &mut model.tokenizer, false),
        ("model.image_encoder.load", &mut model.image_encoder.load, true),
        ("model.image_projector.load", &mut model.image_projector.load, true),
        ("model.audio_encoder.load", &mut model.audio_encoder.load, true),
        ("model.audio_projector.load", &mut model.audio_projector.load, true),
        ("model.text.tokenizer", &mut model.text.tokenizer, false),
        ("model.text_encoder.load", &mut model.text_encoder.load, true),
        ("model.text_projector.load", &mut model.text_projector.load, true),
        ("model.foundation.load", &mut model.foundation.load, true),
        ("model.reference.load", &mut model.reference.load, true),
    ];
    for (key, source, weights) in sources {
        let Some(named) = source.as_mut().filter(|source| source.is_elsewhere()) else { continue };
        if let Some(folder) = find(key, named.as_str(), weights)? {
            *named = Source::new(folder.display().to_string());
        }
    }
    let adapters = [
        ("model.image_encoder.lora.adapter", &mut model.image_encoder.lora),
        ("model.image_projector.lora.adapter", &mut model.image_projector.lora),
        ("model.audio_encoder.lora.adapter", &mut model.audio_encoder.lora),
        ("model.audio_projector.lora.adapter", &mut model.audio_projector.lora),
        ("model.text_encoder.lora.adapter", &mut model.text_encoder.lora),
        ("model.text_projector.lora.adapter", &mut model.text_projector.lora),
        ("model.foundation.lora.adapter", &mut model.foundation.lora),
    ];
    for (key, lora) in adapters {
        let named = lora.as_mut().and_then(|lora| lora.adapter.as_mut());
        let Some(named) = named.filter(|source| source.is_elsewhere()) else { continue };
        if let Some(folder) = find(key, named.as_str(), true)? {
            *named = Source::new(folder.display().to_string());
        }
    }
    Ok(())
}

/// The directory that a key names.
pub(super) fn locate(key: &'static str, source: &Source) -> Result<PathBuf, FolderError> {
    resolve_config(source.as_str()).map_err(|source| FolderError::Hub { key, source })
}

/// Raises `vocab_size` to what the tokenizer needs, wherever the model's config has it. It never falls: published tables
/// often have rows to spare.
fn grow_vocabulary(json: &mut Value, folder: &Path) -> Result<(), FolderError> {
    let config = folder.join("tokenizer_config.json");
    let config = if config.is_file() { read_json(&config)? } else { Value::Null };
    // Without the model's config nothing bounds the ids.
    let needed = Tokenizer::open(folder, &Value::Null, &config)?.num_rows();
    for holder in Section::places_of_text(json) {
        if let Some(size) = json.pointer_mut(&format!("{holder}/vocab_size"))
            && size.as_i64().is_some_and(|size| size < needed)
        {
            *size = needed.into();
        }
    }
    Ok(())
}

/// Returns whether a network of a diffusion model comes from elsewhere than `model.load`.
fn replaces(model: &Model, network: &str) -> bool {
    let given = |part: &Part| !part.config.is_empty() || part.load.is_some();
    model.parts().iter().any(|(key, part)| network_of(key) == network && given(part))
}

/// The file of the text tower's own tokenizer: beside the model, or of a diffusion model where Diffusers has it.
fn find_text_tokenizer(folder: &Path, json: &Value) -> Option<PathBuf> {
    let in_folder = is_diffusion(json).then(|| folder.join("tokenizer").join(TOKENIZER));
    [folder.join(TEXT_TOKENIZER)].into_iter().chain(in_folder).find(|file| file.is_file())
}

/// The folder with the preprocessor configs of a model's pictures: its own, or of a diffusion model where Diffusers has them.
fn find_media(folder: &Path, json: &Value) -> PathBuf {
    let inner = ["image_processor", "processor"].map(|name| folder.join(name));
    let inner =
        inner.into_iter().find(|inner| is_diffusion(json) && !has_preprocessor(folder) && has_preprocessor(inner));
    inner.unwrap_or_else(|| folder.to_owned())
}

fn has_preprocessor(folder: &Path) -> bool {
    ["preprocessor_config.json", "processor_config.json"].iter().any(|name| folder.join(name).is_file())
}

/// The config of a model's folder or file; networks of a diffusion model for which `is_replaced` are left out.
fn read(folder: &Path, is_replaced: &dyn Fn(&str) -> bool) -> Result<Value, FolderError> {
    match diffusers::read(folder, is_replaced)? {
        Some(json) => Ok(json),
        None => read_json(&folder.join("config.json")),
    }
}

/// Sets `key`, which must exist, or merges an object into the one there.
fn apply(json: &mut Value, key: &str, value: &Value) -> Result<(), FolderError> {
    let unknown = || FolderError::UnknownOverride { key: key.to_owned() };
    let mut place = &mut *json;
    for part in key.split('.') {
        place = place.get_mut(part).ok_or_else(unknown)?;
    }
    match (place, value) {
        (place @ Value::Object(_), Value::Object(entries)) => {
            for (inner, value) in entries {
                apply(place, inner, value)
                    .map_err(|_| FolderError::UnknownOverride { key: format!("{key}.{inner}") })?;
            }
        }
        (place, value) => *place = value.clone(),
    }
    Ok(())
}

/// Names the keys whose values differ.
fn compare(key: &str, theirs: &Value, ours: &Value, differences: &mut Vec<String>) {
    match (theirs, ours) {
        (Value::Object(left), Value::Object(right)) => {
            let only_right = right.keys().filter(|name| !left.contains_key(*name));
            // How weights are stored does not make another model.
            let is_storage = |name: &&String| ["dtype", "torch_dtype", "quantization_config"].contains(&name.as_str());
            // Nor does what a policy's data says of its states and actions.
            let is_of_data = |name: &&String| {
                let names = [
                    "input_features",
                    "output_features",
                    "normalization_mapping",
                    "use_relative_actions",
                    "relative_exclude_joints",
                    "action_feature_names",
                ];
                key.is_empty() && names.contains(&name.as_str())
            };
            let is_left_out = |name: &&String| is_storage(name) || is_of_data(name);
            for name in left.keys().chain(only_right).filter(|name| !is_left_out(name)) {
                let inner = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                compare(&inner, &theirs[name], &ours[name], differences);
            }
        }
        _ if theirs == ours => {}
        _ => differences.push(format!("{key}: checkpoint {theirs}, this run {ours}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_vocabulary_grows_to_its_tokenizer_and_never_shrinks() {
        let dir = tempfile::tempdir().unwrap();
        let vocabulary: serde_json::Map<String, Value> = (0..12).map(|id| (format!("w{id}"), json!(id))).collect();
        let tokenizer =
            json!({"version": "1.0", "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"}});
        std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        let mut config = json!({"vocab_size": 20, "text_config": {"vocab_size": 8}});
        grow_vocabulary(&mut config, dir.path()).unwrap();
        assert_eq!(config, json!({"vocab_size": 20, "text_config": {"vocab_size": 12}}));
    }

    #[test]
    fn overrides_reach_nested_keys_and_refuse_unknown_ones() {
        let mut config = json!({"a": 1, "text": {"layers": 2, "width": 8}});
        apply(&mut config, "text.layers", &json!(3)).unwrap();
        apply(&mut config, "text", &json!({"width": 16})).unwrap();
        assert_eq!(config, json!({"a": 1, "text": {"layers": 3, "width": 16}}));
        let error = apply(&mut config, "text", &json!({"depth": 1})).unwrap_err();
        assert_eq!(error.to_string(), "model.overrides.text.depth: config.json has no such key");
    }

    /// A folder of another type, with the tensors of a known one.
    #[test]
    fn an_unknown_model_is_named_by_its_tensors() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/torch/tests/fixtures");
        let opened = |fixture: &str, changes: Value| {
            let (from, dir) = (fixtures.join(fixture), tempfile::tempdir().unwrap());
            std::fs::copy(from.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
            let mut config: Value = serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
            config["model_type"] = json!("newcomer");
            config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
            ModelFolder::open_plain(dir.path()).map(|_| ()).unwrap_err().to_string()
        };
        for (fixture, changes, expected) in [
            ("llama3-seed1", json!({}), "it looks like llama or "),
            ("olmo2-seed1", json!({}), "it looks like olmo2: keys and tensors are those"),
            ("mixtral-seed1", json!({}), "set model.overrides.model_type=mixtral"),
            (
                "llama3-seed1",
                json!({"residual_multiplier": 0.2}),
                "keys that llama does not read (residual_multiplier)",
            ),
        ] {
            let error = opened(fixture, changes);
            assert!(error.contains("model_type is \"newcomer\"") && error.contains(expected), "{error}");
        }
        let other = opened("llama3-seed1", json!({"intermediate_size": 40}));
        assert!(!other.contains("looks like") && !other.contains("has the tensors"), "{other}");
    }

    #[test]
    fn differences_are_named_by_key() {
        let mut differences = Vec::new();
        let (theirs, ours) = (json!({"a": 1, "text": {"layers": 2, "w": 8}}), json!({"a": 1, "text": {"layers": 3}}));
        compare("", &theirs, &ours, &mut differences);
        assert_eq!(differences, ["text.layers: checkpoint 2, this run 3", "text.w: checkpoint 8, this run null"]);
    }
}
