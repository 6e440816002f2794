//! The special tokens of a model's media.

use serde_json::Value as Json;

use crate::data::tokenizer::Tokenizer;

/// The names of special tokens.
pub struct Words<'a> {
    pub config: &'a Json,
    /// `None`: no text stands around the model's pictures.
    pub tokenizer: Option<&'a Tokenizer>,
    pub(super) placeholder: String,
}

impl Words<'_> {
    /// Returns the token that a feature replaces.
    pub fn placeholder(&self) -> String {
        self.placeholder.clone()
    }

    /// Returns the token whose id `config.json` holds under `key`.
    pub fn token(&self, key: &str, default: &str) -> String {
        let named = self.config[key].as_i64().and_then(|id| self.tokenizer?.token(id));
        named.unwrap_or_else(|| default.to_owned())
    }

    /// Returns the token where the tokenizer has it; nothing where it has not.
    pub fn known(&self, token: &str) -> String {
        self.tokenizer.and_then(|tokenizer| tokenizer.id(token)).map(|_| token.to_owned()).unwrap_or_default()
    }
}
