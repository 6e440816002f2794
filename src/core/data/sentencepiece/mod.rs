//! Tokenizers that are published as a SentencePiece model only (`tokenizer.model`: LLaMA-2, InternLM2.5, InternVL2.5), made into
//! a `tokenizer.json` as transformers does.

mod convert;
mod proto;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub use proto::{PieceKind, SentencePiece};
use serde_json::Value as Json;

use super::error::DataError;
use super::tokenizer_file::{parse, read_json_if_exists};
use crate::files;

const FILES: [&str; 2] = ["tokenizer.model", "spiece.model"];

/// Returns the tokenizer of a folder with such a file, and the file; `None` where there is none.
///
/// # Errors
/// The file cannot be read or is no such model.
pub fn read(model_dir: &Path, tokenizer_config: &Json) -> Result<Option<(tokenizers::Tokenizer, PathBuf)>, DataError> {
    let Some((json, path)) = read_as_json(model_dir, tokenizer_config)? else { return Ok(None) };
    let tokenizer = parse(json.to_string().into_bytes()).map_err(|reason| DataError::file(&path, reason))?;
    Ok(Some((tokenizer, path)))
}

/// Works like [`read`] with the `tokenizer.json` that says the same.
///
/// # Errors
/// Fails as [`read`] does.
pub(super) fn read_as_json(model_dir: &Path, tokenizer_config: &Json) -> Result<Option<(Json, PathBuf)>, DataError> {
    let Some((path, bytes)) = file(model_dir)? else { return Ok(None) };
    let added = read_json_if_exists(&model_dir.join("added_tokens.json"))?;
    let json = of_bytes(&bytes, tokenizer_config, &added).map_err(|reason| DataError::file(&path, reason))?;
    Ok(Some((json, path)))
}

/// Returns the pieces of a folder's SentencePiece model in the order of their ids, and whether it is of the kind BPE; `None` where the
/// folder has no such file.
///
/// # Errors
/// Fails as [`read`] does.
pub fn sentence_pieces(model_dir: &Path) -> Result<Option<(Vec<SentencePiece>, bool)>, DataError> {
    let Some((path, bytes)) = file(model_dir)? else { return Ok(None) };
    match proto::Model::parse(&bytes) {
        Some(model) => Ok(Some((model.pieces, model.is_bpe))),
        None => Err(DataError::file(&path, "is not a SentencePiece model")),
    }
}

fn file(model_dir: &Path) -> Result<Option<(PathBuf, Vec<u8>)>, DataError> {
    let Some(path) = FILES.iter().map(|file| model_dir.join(file)).find(|path| path.exists()) else { return Ok(None) };
    let bytes = files::read(&path, files::MAX_TEXT_BYTES).map_err(|error| DataError::read(&path, error))?;
    Ok(Some((path, bytes)))
}

/// # Errors
/// The reason.
fn of_bytes(bytes: &[u8], tokenizer_config: &Json, added: &Json) -> Result<Json, String> {
    let model = proto::Model::parse(bytes).ok_or("is not a SentencePiece model")?;
    convert::tokenizer_json(model, tokenizer_config, added)
}
