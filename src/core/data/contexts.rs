//! Makes of a text what a text tower takes: the ids of its tokens, one a row. The tower has a tokenizer of its own, or the
//! model's.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value as Json;

use super::card::ModelCard;
use super::error::DataError;
use super::media::{Expansion, Marker, Run};
use super::processor::ProcessorFolders;
use super::sample::Media;
use super::tokenizer::Tokenizer;
use super::tokenizer_file::read_json_if_exists;
use crate::message::{Grid, Tower};

/// The file of a model folder that has the text tower's tokenizer, where that is not the model's.
pub const TEXT_TOKENIZER: &str = "text_tokenizer.json";
/// Stands for the text of a sample in the template.
const PLACE: &str = "{}";
/// Tokens of a text where the config does not say.
const MAX_TOKENS: u64 = 512;
/// Positions of CLIP's text tower where its config does not say.
const CLIP_TOKENS: u64 = 77;

/// Texts that stand in a conversation, as a model's text tower takes them.
pub struct ContextProcessor {
    text: TextProcessor,
    marker: Marker,
}

/// Texts as a model's text tower takes them.
pub struct TextProcessor {
    tokenizer: Tokenizer,
    /// The texts before and behind a prompt.
    around: (String, String),
    max_tokens: usize,
    drop_tokens: usize,
    /// Texts that were cut off.
    num_cut: AtomicU64,
}

impl ContextProcessor {
    /// Works like [`TextProcessor::open`] for a model whose tokenizer has a token that stands for features of such texts.
    ///
    /// # Errors
    /// The tokenizer cannot be read, or it has no such token.
    pub fn open(folders: ProcessorFolders<'_>, config: &Json, model: &Tokenizer) -> Result<Option<Self>, DataError> {
        let Some(text) = TextProcessor::open(folders, config)? else { return Ok(None) };
        let id = model.special().context;
        let placeholder =
            id.and_then(|id| model.token(id)).ok_or_else(|| DataError::no_token(folders.model, "text_token_id", id))?;
        Ok(Some(Self { text, marker: Marker { inline: placeholder.clone(), words: vec![placeholder] } }))
    }

    /// Returns how contexts are written in a rendered text.
    pub fn marker(&self) -> &Marker {
        &self.marker
    }

    /// Returns the tokens of `text` within the template, and a placeholder for each feature of them.
    ///
    /// # Errors
    /// The reason: no token is left behind those that have no feature.
    pub fn context(&self, text: &str) -> Result<Expansion, String> {
        let media = self.text.item(text)?;
        let run = Run { tower: Tower::Text, ..Run::of_sound(media.num_features) };
        Ok(Expansion::plain(media, run))
    }

    /// Returns a note for the user about the texts so far.
    pub fn notes(&self) -> Option<String> {
        self.text.notes()
    }
}

impl TextProcessor {
    /// Opens the processor of the text tower of `config`, a `config.json`; `None` for a model without such a tower.
    ///
    /// # Errors
    /// The tokenizer is missing or has more tokens than the tower, or the config's section `text` is wrong.
    pub fn open(folders: ProcessorFolders<'_>, config: &Json) -> Result<Option<Self>, DataError> {
        let ProcessorFolders { model: model_dir, text: own, .. } = folders;
        let Some(section) = ModelCard::of(config).text_tower() else { return Ok(None) };
        let path = model_dir.join("config.json");
        let wrong = |what: String| DataError::file(&path, what);
        let carried = model_dir.join(TEXT_TOKENIZER);
        let tokenizer = match own.or(Some(carried.as_path()).filter(|file| file.is_file())) {
            Some(file) => Tokenizer::of_file(file, section)?,
            None => {
                let tokenizer_config = read_json_if_exists(&model_dir.join("tokenizer_config.json"))?;
                Tokenizer::open(model_dir, section, &tokenizer_config)?
            }
        };
        let text = &config["text"];
        let count = |key: &str, default: u64| match &text[key] {
            Json::Null => Ok(default as usize),
            value => value
                .as_u64()
                .map(|count| count as usize)
                .ok_or_else(|| wrong(format!("text.{key} must be a whole number, found {value}"))),
        };
        // The table of positions bounds the texts of CLIP.
        let positions = match section["model_type"].as_str() {
            Some("clip_text_model") => section["max_position_embeddings"].as_u64().unwrap_or(CLIP_TOKENS),
            _ => u64::MAX,
        };
        let (max_tokens, drop_tokens) = (count("max_tokens", MAX_TOKENS.min(positions))?, count("drop_tokens", 0)?);
        if max_tokens as u64 > positions {
            let what = format!("text.max_tokens is {max_tokens}, but the text tower has {positions} positions");
            return Err(wrong(format!("{what} (max_position_embeddings): set model.text.max_tokens={positions}")));
        }
        if drop_tokens >= max_tokens {
            return Err(wrong(format!(
                "text.drop_tokens ({drop_tokens}) must be below text.max_tokens ({max_tokens})"
            )));
        }
        let template = match &text["template"] {
            Json::Null => PLACE,
            value => value.as_str().ok_or_else(|| wrong(format!("text.template must be a string, found {value}")))?,
        };
        let around = template.split_once(PLACE).filter(|(_, after)| !after.contains(PLACE));
        let (before, after) = around
            .ok_or_else(|| wrong(format!("text.template must contain {PLACE} exactly once, found {template:?}")))?;
        let begin = first_of_text(&tokenizer, before, after).map_err(|error| wrong(error.to_string()))?;
        if begin.is_some_and(|begin| drop_tokens > begin) {
            let begin = begin.unwrap_or(0);
            let what =
                format!("text.drop_tokens is {drop_tokens}, but with this tokenizer the text begins at token {begin}");
            return Err(wrong(format!("{what}: set model.text.drop_tokens={begin}")));
        }
        Ok(Some(Self {
            tokenizer: tokenizer.cut_at(max_tokens)?,
            around: (before.to_owned(), after.to_owned()),
            max_tokens,
            drop_tokens,
            num_cut: AtomicU64::new(0),
        }))
    }

    /// Makes the tokens of `text` within the template.
    ///
    /// # Errors
    /// The reason: no token is left behind those that have no feature.
    pub fn item(&self, text: &str) -> Result<Media, String> {
        let ids = self.ids(text)?;
        let num_features = self.num_features(ids.len())?;
        let grid = Grid { t: ids.len() as u32, h: 1, w: 1 };
        // A float32 has every id below 2²⁴.
        let pixels = ids.iter().map(|&id| id as f32).collect();
        Ok(Media { tower: Tower::Text, grid, num_features, pixels })
    }

    /// Returns the ids of `text` within the template.
    ///
    /// # Errors
    /// The reason: it cannot be tokenized.
    pub fn ids(&self, text: &str) -> Result<Vec<i64>, String> {
        let (before, after) = &self.around;
        let whole = format!("{before}{text}{after}");
        let (ids, is_cut) = self.tokenizer.encode_cut(&whole).map_err(|error| error.to_string())?;
        if is_cut {
            let count = self.num_cut.fetch_add(1, Ordering::Relaxed) + 1;
            if 10u64.pow(count.ilog10()) == count {
                tracing::warn!("{}", self.cut(count));
            }
        }
        Ok(ids.into_iter().map(i64::from).collect())
    }

    /// Returns the number of features of a context of so many tokens.
    ///
    /// # Errors
    /// The reason: none is left.
    pub fn num_features(&self, num_tokens: usize) -> Result<usize, String> {
        match num_tokens.saturating_sub(self.drop_tokens) {
            0 => Err(format!(
                "the context has {num_tokens} tokens, and the first {} are dropped: none are left",
                self.drop_tokens
            )),
            num_features => Ok(num_features),
        }
    }

    /// Returns the tower's tokenizer, which may differ from the foundation's.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Returns a note for the user about the texts so far.
    pub fn notes(&self) -> Option<String> {
        let count = self.num_cut.load(Ordering::Relaxed);
        (count > 0).then(|| self.cut(count))
    }

    fn cut(&self, count: u64) -> String {
        format!("contexts cut off at model.text.max_tokens = {}: {count}", self.max_tokens)
    }
}

/// Returns the number of tokens before the first of a text that stands between `before` and `after`; `None` where the tokenizer cannot
/// tell texts apart.
fn first_of_text(tokenizer: &Tokenizer, before: &str, after: &str) -> Result<Option<usize>, DataError> {
    let ids = |text: &str| tokenizer.encode_document(&format!("{before}{text}{after}"));
    let (one, other) = (ids("a")?, ids("1")?);
    Ok(one.iter().zip(&other).position(|(one, other)| one != other))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::{ContextProcessor, TEXT_TOKENIZER};
    use crate::data::digits::{MODEL, write_model};
    use crate::data::processor::{Processor, ProcessorFolders, ProcessorOptions};
    use crate::data::source::Conversation;
    use crate::data::tokenizer::Tokenizer;
    use crate::data::tokenizer_file::read_json;
    use crate::message::{SampleId, Tower};

    /// Opens the digits' tokenizer, which has a token a byte, for model and tower; the picture's token stands for contexts.
    fn open(text: Json) -> Result<ContextProcessor, String> {
        let dir = tempfile::tempdir().unwrap();
        write_model(dir.path(), &MODEL).unwrap();
        let mut config = read_json(&dir.path().join("config.json")).unwrap();
        let vocab_size = config["text_config"]["vocab_size"].clone();
        config["text_token_id"] = config["image_token_id"].clone();
        config["text_encoder"] = json!({"model_type": "umt5", "vocab_size": vocab_size});
        config["text"] = text;
        let model = Tokenizer::open(dir.path(), &config, &Json::Null).map_err(|error| error.to_string())?;
        std::fs::copy(dir.path().join("tokenizer.json"), dir.path().join(TEXT_TOKENIZER)).unwrap();
        let made = ContextProcessor::open(ProcessorFolders::of(dir.path()), &config, &model);
        made.map(|made| made.expect("a text tower")).map_err(|error| error.to_string())
    }

    #[test]
    fn a_text_becomes_ids_within_its_template_and_is_cut_with_a_word() {
        let contexts = open(json!({"template": "ab{}c", "max_tokens": 6, "drop_tokens": 2})).unwrap();
        let ids = |text: &str| {
            let found = contexts.context(text).unwrap();
            let item = &found.media[0];
            assert_eq!(
                (item.tower, item.grid.num_cells(), found.num_features()),
                (Tower::Text, item.pixels.len(), item.num_features)
            );
            (item.pixels.clone(), item.num_features)
        };
        let (whole, num_features) = ids("xy");
        assert_eq!((whole.len(), num_features), (5, 3));
        assert_eq!(contexts.notes(), None);
        let (cut, num_features) = ids("xyzuvw");
        assert_eq!((cut.len(), num_features, &cut[..4]), (6, 4, &whole[..4]));
        assert_eq!(contexts.notes().unwrap(), "contexts cut off at model.text.max_tokens = 6: 1");
        let none = open(json!({"template": "ab{}", "drop_tokens": 2})).unwrap().context("").unwrap_err();
        assert_eq!(none, "the context has 2 tokens, and the first 2 are dropped: none are left");
    }

    #[test]
    fn what_a_tower_cannot_be_given_is_named() {
        for (text, expected) in [
            (json!({"template": "no place"}), "text.template must contain {} exactly once"),
            (json!({"template": "{} {}"}), "text.template must contain {} exactly once"),
            (json!({"max_tokens": 4, "drop_tokens": 4}), "text.drop_tokens (4) must be below text.max_tokens (4)"),
            (
                json!({"template": "ab{}", "drop_tokens": 3}),
                "with this tokenizer the text begins at token 2: set model.text",
            ),
            (json!({"max_tokens": -1}), "text.max_tokens must be a whole number, found -1"),
        ] {
            let error = open(text).err().unwrap();
            assert!(error.contains(expected), "{error:?} lacks {expected:?}");
        }
        // Each context has its place, and a model without a text tower takes none.
        let parse = |contexts: Json, content: &str| {
            let messages = json!([{"role": "user", "content": content}, {"role": "assistant", "content": "a"}]);
            Conversation::parse(&json!({"messages": messages, "contexts": contexts}).to_string())
        };
        let error = |found: Result<_, crate::data::DataError>| found.map(|_: Conversation| ()).unwrap_err().to_string();
        assert!(error(parse(json!(["x"]), "?")).contains("`contexts` lists 1, but the messages have 0 <context>"));
        assert!(error(parse(json!(["x"]), "<context><context>")).contains("the messages have more <context> than"));
        let dir = tempfile::tempdir().unwrap();
        write_model(dir.path(), &MODEL).unwrap();
        let config = read_json(&dir.path().join("config.json")).unwrap();
        let processor = Processor::open(dir.path(), &config, &ProcessorOptions::default()).unwrap();
        let conversation = parse(json!(["x"]), "<context>").unwrap();
        let error = processor.training_sample(SampleId(0), &conversation, dir.path()).unwrap_err().to_string();
        assert!(error.contains("this model takes no contexts"), "{error}");
    }
}
