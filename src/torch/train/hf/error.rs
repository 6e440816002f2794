//! The errors of the weights in a folder.

use super::file::TensorFileError;
use super::mismatches::Mismatches;
use crate::native::NativeError;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    #[error(transparent)]
    File(#[from] TensorFileError),
    #[error(transparent)]
    Native(#[from] NativeError),
    /// `others`: the files of weights that are there, behind a semicolon.
    #[error("{folder} has no {stem}.safetensors (nor its .index.json){others}")]
    NoWeights { folder: PathBuf, stem: String, others: String },
    #[error(
        "{folder} has its weights in pickle files ({file}), which run code when they are opened and are never read; if you trust \
         it, convert it once: python -c \"from transformers import AutoModel; \
         AutoModel.from_pretrained('{folder}').save_pretrained('converted')\""
    )]
    Pickle { folder: PathBuf, file: String },
    #[error(
        "{folder} has its weights in pickle files ({file}), which run code when they are opened and are never read; load the \
         repository in Diffusers' layout (its name ends with -Diffusers), or safetensors repackaged for ComfyUI"
    )]
    PickledNetwork { folder: PathBuf, file: String },
    #[error("{path}: {reason}")]
    Index { path: PathBuf, reason: String },
    #[error("the quantized weights in {folder} cannot be read: {reason}")]
    Quantization { folder: PathBuf, reason: String },
    #[error("the weights in {folder} do not match config.json:\n{mismatches}")]
    Mismatch { folder: PathBuf, mismatches: Box<Mismatches> },
    #[error(
        "{folder}: {head} differs from {embedding}, although tie_word_embeddings is true: if the model has a head of its own, \
         set the key to false wherever config.json has it, text_config included (in a run: \
         model.overrides.tie_word_embeddings=false, and so on); if it has none, leave {head} out (in a run: \
         model.load_ignore={head})"
    )]
    OtherHead { folder: PathBuf, head: String, embedding: String },
    #[error(
        "{key} is set, but nothing of a {model_type} model is loaded from there: all its weights are those of model.load; leave {key} \
         out, or compose the model of parts, without model.load"
    )]
    UnusedPart { key: String, model_type: String },
    #[error("{name} has values outside the range from 0 to {below} (exclusive)")]
    OutOfRange { name: String, below: i64 },
    #[error("cannot write {path}: {source}; is the folder writable, and is there space on the disk?")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{folder}: {reason}")]
    Convert { folder: PathBuf, reason: String },
}
