//! Makes of a text what a text tower takes: the ids of its tokens, one a row. The tower has a tokenizer of its own, or the
//! model's.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value as Json;

use super::card::ModelCard;
use super::error::DataError;
use super::media::{Expansion, Marker, Run};
use super::sample::Media;
use super::tokenizer::Tokenizer;
use super::tokenizer_file::read_json_if_exists;
use crate::message::{Grid, Tower};

/// The folder within a checkpoint that has the text tower's tokenizer.
pub const TEXT_TOKENIZER: &str = "text_tokenizer";
/// Stands for the text of a sample in the template.
const PLACE: &str = "{}";
/// Tokens of a text where the config does not say.
const MAX_TOKENS: u64 = 512;

/// Texts as a model's text tower takes them.
pub struct ContextProcessor {
    tokenizer: Tokenizer,
    /// Before and behind a text.
    around: (String, String),
    max_tokens: usize,
    drop_tokens: usize,
    marker: Marker,
    /// Texts that were cut off.
    num_cut: AtomicU64,
}

impl ContextProcessor {
    /// The processor of the text tower of `config`, a `config.json`, with the tokenizer in `text_dir`, or else in
    /// `model_dir`; `None` for a model without such a tower.
    ///
    /// # Errors
    /// The tokenizer is missing or has more tokens than the tower, or the config's section `text` is wrong.
    pub fn open(
        (model_dir, text_dir): (&Path, Option<&Path>),
        config: &Json,
        model: &Tokenizer,
    ) -> Result<Option<Self>, DataError> {
        let Some(section) = ModelCard::of(config).text_tower() else { return Ok(None) };
        let path = model_dir.join("config.json");
        let wrong = |what: String| DataError::file(&path, what);
        let dir = text_dir.unwrap_or(model_dir);
        let tokenizer_config = read_json_if_exists(&dir.join("tokenizer_config.json"))?;
        let text = &config["text"];
        let count = |key: &str, default: u64| match &text[key] {
            Json::Null => Ok(default as usize),
            value => value.as_u64().map(|count| count as usize).ok_or_else(|| wrong(format!("text.{key} is {value}"))),
        };
        let (max_tokens, drop_tokens) = (count("max_tokens", MAX_TOKENS)?, count("drop_tokens", 0)?);
        if drop_tokens >= max_tokens {
            return Err(wrong(format!("text.drop_tokens is {drop_tokens}, not below text.max_tokens, {max_tokens}")));
        }
        let template = match &text["template"] {
            Json::Null => PLACE,
            value => value.as_str().ok_or_else(|| wrong(format!("text.template is {value}, no string")))?,
        };
        let around = template.split_once(PLACE).filter(|(_, after)| !after.contains(PLACE));
        let (before, after) =
            around.ok_or_else(|| wrong(format!("text.template has not one {PLACE}: {template:?}")))?;
        let placeholder = model.special().context.and_then(|id| model.token(id)).ok_or_else(|| {
            DataError::file(model_dir, "tokenizer.json has no token of the id text_token_id of config.json")
        })?;
        Ok(Some(Self {
            tokenizer: Tokenizer::open(dir, section, &tokenizer_config)?.cut_at(max_tokens)?,
            around: (before.to_owned(), after.to_owned()),
            max_tokens,
            drop_tokens,
            marker: Marker { inline: placeholder.clone(), words: vec![placeholder] },
            num_cut: AtomicU64::new(0),
        }))
    }

    pub fn marker(&self) -> &Marker {
        &self.marker
    }

    /// The tokens of `text` within the template, and a placeholder for each feature of them.
    ///
    /// # Errors
    /// The reason: no token is left behind those that have no feature.
    pub fn context(&self, text: &str) -> Result<Expansion, String> {
        let (before, after) = &self.around;
        let whole = format!("{before}{text}{after}");
        let (ids, is_cut) = self.tokenizer.encode_cut(&whole).map_err(|error| error.to_string())?;
        if is_cut {
            let count = self.num_cut.fetch_add(1, Ordering::Relaxed) + 1;
            if 10u64.pow(count.ilog10()) == count {
                tracing::warn!("{}", self.cut(count));
            }
        }
        let num_features = ids.len().saturating_sub(self.drop_tokens);
        if num_features == 0 {
            return Err(format!(
                "a context of {} tokens, of which the first {} are dropped",
                ids.len(),
                self.drop_tokens
            ));
        }
        let grid = Grid { t: ids.len() as u32, h: 1, w: 1 };
        // A float32 has every id below 2²⁴.
        let pixels = ids.iter().map(|&id| id as f32).collect();
        let media = Media { tower: Tower::Text, grid, num_features, pixels };
        Ok(Expansion::plain(media, Run { tower: Tower::Text, ..Run::of_sound(num_features) }))
    }

    /// Returns what the user should know of the texts so far.
    pub fn notes(&self) -> Option<String> {
        let count = self.num_cut.load(Ordering::Relaxed);
        (count > 0).then(|| self.cut(count))
    }

    fn cut(&self, count: u64) -> String {
        format!("contexts that were cut off at model.text.max_tokens = {}: {count}", self.max_tokens)
    }
}
