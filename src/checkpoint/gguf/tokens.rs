//! A tokenizer's files, and the tokens in them.

use super::json_file::read_json;
use crate::checkpoint::export_error::ExportError;
use loongforge_core::data::{DataError, SentencePiece, sentence_pieces, tokenizer_json};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::Path;

/// Types of tokens.
pub const NORMAL: i32 = 1;
pub const UNKNOWN: i32 = 2;
pub const CONTROL: i32 = 3;
pub const USER_DEFINED: i32 = 4;
pub const UNUSED: i32 = 5;
pub const BYTE: i32 = 6;

/// One row of the table of embeddings.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    pub text: String,
    pub kind: i32,
    /// The higher, the earlier it is put together; of byte-level tokenizers not used.
    pub score: f32,
}

/// A tokenizer's files.
pub struct Files {
    /// `tokenizer.json`, or what says the same.
    pub json: Json,
    /// `tokenizer_config.json`, or null.
    pub settings: Json,
    /// The pieces of `tokenizer.model`, and whether it is of the kind BPE.
    pub pieces: Option<(Vec<SentencePiece>, bool)>,
}

impl Files {
    /// # Errors
    /// A file is missing or cannot be read.
    pub fn read(folder: &Path) -> Result<Self, ExportError> {
        let settings = read_json(&folder.join("tokenizer_config.json"))?;
        let wrong = |error: DataError| ExportError::Form { path: folder.to_owned(), reason: error.to_string() };
        let (json, _) = tokenizer_json(folder, &settings).map_err(wrong)?;
        Ok(Self { json, settings, pieces: sentence_pieces(folder).map_err(wrong)? })
    }

    /// Returns the tokens of `model` by id.
    ///
    /// # Errors
    /// An id is no whole number below `rows`.
    pub fn tokens(&self, rows: usize) -> Result<BTreeMap<usize, &str>, String> {
        let vocab = self.json["model"]["vocab"].as_object().ok_or("model.vocab must be an object of tokens and ids")?;
        let id = |(text, id): (&'_ String, &Json)| match id.as_u64() {
            Some(id) if id < rows as u64 => Ok(id as usize),
            _ => Err(format!("token {text:?} has the id {id}, but the model has only {rows} rows")),
        };
        vocab.iter().map(|(text, number)| Ok((id((text, number))?, text.as_str()))).collect()
    }
}

/// Puts the tokens that were added to a tokenizer over those of its model. Rows without a token are unused.
///
/// # Errors
/// One has an id that the model has no row for.
pub fn put_added(tokens: &mut [Token], files: &Files) -> Result<(), String> {
    for added in files.json["added_tokens"].as_array().into_iter().flatten() {
        let (Some(id), Some(text)) = (added["id"].as_u64(), added["content"].as_str()) else {
            return Err(format!("added_tokens has an entry without `id` or `content`: {added:.80}"));
        };
        let rows = tokens.len();
        let Some(token) = usize::try_from(id).ok().and_then(|id| tokens.get_mut(id)) else {
            return Err(format!("token {text:?} has the id {id}, but the model has only {rows} rows"));
        };
        let is_control = added["special"] == true || looks_special(text);
        let (kind, text) = match is_control {
            true => (CONTROL, text.to_owned()),
            false => (USER_DEFINED, text.replace('▁', " ")),
        };
        *token = Token { text, kind, score: -1000.0 };
    }
    Ok(())
}

/// Returns the row of this number where the tokenizer has no token for it.
pub fn unused(row: usize) -> Token {
    Token { text: format!("[PAD{row}]"), kind: UNUSED, score: -10000.0 }
}

/// Some models do not mark tokens as special that steer them: llama.cpp's converter takes them for such.
fn looks_special(text: &str) -> bool {
    let is_within = |open: &str, close: &str| text.starts_with(open) && text.ends_with(close);
    ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].contains(&text)
        || is_within("<|", "|>")
        || is_within("<｜", "｜>")
        || is_within("<unused", ">")
}
