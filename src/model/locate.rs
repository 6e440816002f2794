//! The folders of a trained model: a run's newest checkpoint, any folder, or that of adapters and that of the base which
//! they are added to.

use crate::model::hub::{HubError, resolve_model};
use loongforge_core::checkpoint::{CheckpointError, latest};
use loongforge_core::data::MODEL_INDEX;
use loongforge_torch::train::hf::is_adapter;
use loongforge_torch::train::{AdapterError, adapter_base};
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum BaseError {
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("no such folder: {folder}; an id of the hub has the form org/name")]
    Missing { folder: PathBuf },
    #[error("{folder} has no checkpoint yet")]
    NoCheckpoint { folder: PathBuf },
    #[error(
        "{folder} holds adapters and does not name their base model: merge them into the model that they were trained on, with \
         `loongforge checkpoint export-hf {folder} OUT --base MODEL`"
    )]
    Unnamed { folder: PathBuf },
    #[error(
        "{folder} holds adapters of {base}, which is not a local folder: name it, with \
         `loongforge checkpoint export-hf {folder} OUT --base MODEL`"
    )]
    Gone { folder: PathBuf, base: String },
    #[error("{folder} holds whole weights; --base is for adapters")]
    Whole { folder: PathBuf },
}

/// The folder of the model that a user names: a folder, a hub id, or the folder of a run, of which the newest checkpoint is
/// meant.
///
/// # Errors
/// There is no such folder, the hub has no such model or it cannot be fetched, or a run has no checkpoint yet.
pub fn find_model(named: &str) -> Result<PathBuf, BaseError> {
    let folder = resolve_model(named)?;
    // One file of weights is a model as well.
    if folder.is_file() {
        return Ok(folder);
    }
    if !folder.is_dir() {
        return Err(BaseError::Missing { folder });
    }
    if ["config.json", MODEL_INDEX].iter().any(|name| folder.join(name).is_file()) || is_adapter(&folder) {
        return Ok(folder);
    }
    for checkpoints in [folder.join("checkpoints"), folder.clone()] {
        if let Some(newest) = latest(&checkpoints)? {
            return Ok(newest);
        }
    }
    if folder.join("checkpoints").is_dir() || folder.join("metrics.jsonl").is_file() {
        return Err(BaseError::NoCheckpoint { folder });
    }
    Ok(folder)
}

/// Describes where what makes up a model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFolders {
    /// Its weights, or those that its adapters are added to.
    pub weights: PathBuf,
    pub adapters: Option<PathBuf>,
    /// `config.json` and tokenizer: beside the adapters, as a run saves them, or beside the weights.
    pub config: PathBuf,
}

impl ModelFolders {
    /// Finds the model in `folder`. The base of adapters is `base`, or what they say themselves: a folder or a hub id.
    ///
    /// # Errors
    /// There is no such folder. The base is not known, not here, or cannot be fetched; or `base` is said of a whole model.
    pub fn find(folder: &Path, base: Option<&str>) -> Result<Self, BaseError> {
        let named = || folder.to_owned();
        if !folder.is_dir() {
            return Err(BaseError::Missing { folder: named() });
        }
        if !is_adapter(folder) {
            return match base {
                None => Ok(Self { weights: named(), adapters: None, config: named() }),
                Some(_) => Err(BaseError::Whole { folder: named() }),
            };
        }
        let base = match base {
            Some(base) => base.to_owned(),
            None => adapter_base(folder)?.ok_or_else(|| BaseError::Unnamed { folder: named() })?,
        };
        let weights = resolve_model(&base)?;
        if !weights.is_dir() {
            return Err(BaseError::Gone { folder: named(), base });
        }
        let config = if folder.join("config.json").is_file() { named() } else { weights.clone() };
        Ok(Self { weights, adapters: Some(named()), config })
    }
}
