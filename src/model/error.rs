//! Errors of a model's folder.

use crate::model::hub::HubError;
use loongforge_core::data::DataError;
use loongforge_torch::model::{AnswersError, ModelConfigError};
use loongforge_torch::train::WeightsError;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("{path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} has no model: neither config.json nor model_index.json{hint}")]
    NoModel { path: PathBuf, hint: String },
    #[error("{path} is not JSON: {source}")]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("{key}: {source}")]
    Hub { key: &'static str, source: HubError },
    #[error("{key} is missing")]
    Missing { key: &'static str },
    #[error(
        "model.mtp.num_layers is {num_heads}, but multi-token prediction layers are not supported for {model_type}: leave it out; \
         if the folder has such tensors, name them in model.load_ignore"
    )]
    NoMtp { num_heads: usize, model_type: String },
    #[error("model.indexer.loss_coef is set, but {model_type} has no indexer that can be trained: leave it out")]
    NoIndexer { model_type: String },
    #[error("model.text is set, but the model has no text tower (model.text_encoder): leave it out")]
    NoTextTower,
    #[error("model.moe is set, but {model_type} has no experts whose routers it could balance: leave it out")]
    NoRouters { model_type: String },
    #[error(
        "train.preference.loss compares with a reference model, but {model_type} is composed of parts, which cannot serve as one \
         yet: train them first and set model.load to a checkpoint, or set model.reference.load, or choose orpo or simpo, which \
         have no reference"
    )]
    ReferenceOfParts { model_type: String },
    #[error(
        "train.preference.loss compares with a reference model, but this would share pools.{pool} with towers of the model: give \
         it a pool of its own with pools.reference={{replicas: 1}}, and leave pools.placement at separate"
    )]
    ReferenceShares { pool: String },
    #[error(
        "{key} is only supported for language models with a single decoder, which {model_type} is not; leave it out"
    )]
    NotOfTokens { key: &'static str, model_type: String },
    #[error("train.preference: {source}")]
    Answers { source: AnswersError },
    #[error("{path}: {key} is {found:?}: {known}")]
    Pipeline { path: PathBuf, key: &'static str, found: String, known: String },
    #[error(
        "{path} has encoders and autoencoder in pickle files ({names}), which run code when they are opened and are never read; \
         load the repository in Diffusers' layout (its name ends with -Diffusers), or load them with model.vae.load and \
         model.text_encoder.load from safetensors, such as those repackaged for ComfyUI"
    )]
    Pickles { path: PathBuf, names: String },
    #[error("{path}: {reason}")]
    File { path: PathBuf, reason: String },
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Tokenizer(#[from] DataError),
    #[error("model.overrides.{key}: config.json has no such key")]
    UnknownOverride { key: String },
    #[error("{key}.overrides.{inner}: the config of this part has no such key")]
    UnknownPartKey { key: &'static str, inner: String },
    #[error("{key}.overrides: the model has no config of this part")]
    NoSection { key: &'static str },
    #[error("{path}: {source}")]
    Model { path: PathBuf, source: ModelConfigError },
    #[error("{path}: {what}")]
    Alike { path: PathBuf, what: String },
    #[error(
        "model.{key}.config: {model_type} models are not composed of parts; change them with model.overrides, or \
         leave out model.load"
    )]
    NoParts { key: &'static str, model_type: String },
    #[error("error[{code}]: {source}{}", placeholder(source))]
    Parts { code: &'static str, source: ModelConfigError },
    #[error(
        "{path}: {source}. A run has saved this folder, so its program has that model_type, and this one does not: open the folder \
         with that program, which has families of its own (loongforge::cli::main_with, docs/own-encoder.md) or is of a later version"
    )]
    OtherProgram { path: PathBuf, source: ModelConfigError },
    #[error("{path} does not match this run's model: {}", differences.join(", "))]
    OtherModel { path: PathBuf, differences: Vec<String> },
}

impl FolderError {
    /// Says of a mistake in a model's config that it is at `place`.
    pub(super) fn of_config(self, place: PathBuf) -> Self {
        match self {
            Self::Model { source, .. } => Self::Model { path: place, source },
            Self::Alike { what, .. } => Self::Alike { path: place, what },
            other => other,
        }
    }

    /// Says of a model that a run has saved in `folder`, and that has a family which this program lacks, that it needs its own
    /// program; other errors stay.
    pub(super) fn of_saved(self, folder: &Path) -> Self {
        let is_unknown = |error: &ModelConfigError| match error {
            ModelConfigError::Unsupported { key, .. } => key.ends_with("model_type"),
            _ => false,
        };
        match self {
            Self::Parts { source, .. } | Self::Model { source, .. } if is_unknown(&source) => {
                Self::OtherProgram { path: folder.join("config.json"), source }
            }
            other => other,
        }
    }
}

/// Returns advice for a model of parts whose config names no token for what a tower is given; empty for other errors.
fn placeholder(error: &ModelConfigError) -> String {
    let ModelConfigError::Missing { key } = error else { return String::new() };
    let thing = match key.as_str() {
        "image_token_id" => "a picture",
        "audio_token_id" => "a recording",
        "text_token_id" => "a text for the text tower",
        _ => return String::new(),
    };
    format!(
        ": it is the id of the token that stands for {thing}; set model.config: {{ {key}: N }} to the id that the tokenizer has \
         for a special token which nothing else uses"
    )
}
