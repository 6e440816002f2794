//! `tokenizer.json` and the special tokens of a model folder.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value as Json;

use super::error::DataError;

/// Text to ids and back.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    special: SpecialTokens,
}

/// Ids that mean something to the model or the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Placeholder that a picture's features replace; `None` for text models.
    pub image: Option<i64>,
    /// Tokens that end a turn or a text.
    pub end: BTreeSet<i64>,
}

/// A piece of a text: its id and where it begins, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    pub id: i64,
    pub start: usize,
}

impl Tokenizer {
    /// `config` is the model's `config.json`, `tokenizer_config` that of the tokenizer.
    pub fn open(model_dir: &Path, config: &Json, tokenizer_config: &Json) -> Result<Self, DataError> {
        let path = model_dir.join("tokenizer.json");
        let bytes = std::fs::read(&path).map_err(|error| DataError::read(&path, error))?;
        let mut inner = tokenizers::Tokenizer::from_bytes(&bytes).map_err(|error| DataError::file(&path, error))?;
        // Some files on the hub ask for padding or truncation: a training sample must be as it is.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| DataError::file(&path, error))?;
        let id = |token: &str| inner.token_to_id(token).map(i64::from);

        let image = config["image_token_id"].as_i64();
        let vocab_size = config["text_config"]["vocab_size"].as_i64().or(config["vocab_size"].as_i64());
        let largest = inner.get_vocab(true).into_values().max().map_or(0, i64::from);
        if let Some(vocab_size) = vocab_size
            && largest >= vocab_size
        {
            return Err(DataError::file(
                &path,
                format!("has token id {largest}, but the model's config.json says vocab_size {vocab_size}"),
            ));
        }
        let mut end: BTreeSet<i64> = ["<|im_end|>"].into_iter().filter_map(id).collect();
        end.extend(token_text(&tokenizer_config["eos_token"]).and_then(id));
        for holder in [config, &config["text_config"]] {
            match &holder["eos_token_id"] {
                Json::Array(ids) => end.extend(ids.iter().filter_map(Json::as_i64)),
                one => end.extend(one.as_i64()),
            }
        }
        Ok(Self { inner, special: SpecialTokens { image, end } })
    }

    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// Special tokens in the text count as such; none are added.
    pub fn encode(&self, text: &str) -> Result<Vec<Token>, DataError> {
        let encoding = self.inner.encode(text, false).map_err(|error| DataError::Tokenizer(error.to_string()))?;
        let starts = encoding.get_offsets().iter().map(|offset| offset.0);
        Ok(encoding.get_ids().iter().zip(starts).map(|(&id, start)| Token { id: i64::from(id), start }).collect())
    }

    /// The text of ids, without special tokens.
    pub fn decode(&self, ids: &[i64]) -> Result<String, DataError> {
        let ids: Vec<u32> = ids.iter().filter_map(|&id| u32::try_from(id).ok()).collect();
        self.inner.decode(&ids, true).map_err(|error| DataError::Tokenizer(error.to_string()))
    }
}

/// A special token in `tokenizer_config.json`: a string, or an object with `content`.
pub(super) fn token_text(token: &Json) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}

pub(super) fn read_json(path: &Path) -> Result<Json, DataError> {
    let bytes = std::fs::read(path).map_err(|error| DataError::read(path, error))?;
    serde_json::from_slice(&bytes).map_err(|error| DataError::file(path, error))
}

/// As [`read_json`], `null` where there is no such file.
pub(super) fn read_json_if_exists(path: &Path) -> Result<Json, DataError> {
    if path.exists() { read_json(path) } else { Ok(Json::Null) }
}
