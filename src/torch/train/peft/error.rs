//! Describes what can be wrong with adapters.

use crate::train::hf::{TensorFileError, WeightsError};
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    #[error(transparent)]
    File(#[from] TensorFileError),
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path} is not the config of a LoRA adapter: {reason}")]
    Config { path: PathBuf, reason: String },
    #[error("{path} does not match the model with its adapters: {}", problems.join("; "))]
    Mismatch { path: PathBuf, problems: Vec<String> },
}
