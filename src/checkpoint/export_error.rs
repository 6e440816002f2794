//! The reasons for which a model cannot be written in another form.

use crate::model::error::FolderError;
use crate::model::locate::BaseError;
use loongforge_core::checkpoint::CheckpointError;
use loongforge_core::text::shell_word;
use loongforge_torch::train::{AdapterError, WeightsError};
use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Carried(#[from] CheckpointError),
    #[error(transparent)]
    Base(#[from] BaseError),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} is not JSON: {source}")]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("{out} already exists and is not empty: name another folder")]
    Exists { out: PathBuf },
    #[error("{path}: {reason}")]
    Form { path: PathBuf, reason: String },
    #[error(
        "{folder} is a diffusion model, which transformers cannot load: write it with `loongforge checkpoint export {} {} \
         --format diffusers`, which takes --dtype as well",
        shell_word(folder),
        shell_word(out)
    )]
    Diffusion { folder: PathBuf, out: PathBuf },
    #[error("the weights in {folder} are packed ({format}): add --dequantize")]
    Packed { folder: PathBuf, format: String },
}
