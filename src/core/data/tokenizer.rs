//! The tokenizer of a model folder and its special tokens.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use tokenizers::TruncationParams;

use super::card::ModelCard;
use super::error::DataError;
use super::tokenizer_file::{read_json, read_json_if_exists, read_tokenizer, token_text};
use super::{sentencepiece, tiktoken};
use crate::files;
use crate::message::Tower;

/// Text to ids and back.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    vocab_size: i64,
    special: SpecialTokens,
    /// The ids of all tokens that the tokenizer has as special.
    all_special: BTreeSet<i64>,
    closing: Vec<String>,
    /// The special tokens that are no text, where the others are; `None`: no special token is, except `tags`.
    unwritten: Option<Vec<i64>>,
    /// Special tokens around calls of tools, which some models have.
    tags: Vec<i64>,
}

/// Ids that mean something to the model or the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Placeholder that the features of pictures and videos replace; `None` for text models.
    pub image: Option<i64>,
    /// Placeholder that the features of recordings replace; `None` for models that hear nothing.
    pub audio: Option<i64>,
    /// Placeholder that the features of texts for a text tower replace; `None` for models without one.
    pub context: Option<i64>,
    /// Ends a document.
    pub eos: Option<i64>,
    /// Tokens that end a turn or a text.
    pub end: BTreeSet<i64>,
}

/// A piece of a text: its id and where it begins, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    pub id: i64,
    pub start: usize,
}

/// Tags around calls of tools; without them nobody would find the calls in a text.
const CALL_TAGS: [&str; 2] = ["<tool_call>", "</tool_call>"];
/// A text that may be far too long is encoded in pieces of so many bytes.
const PIECE_BYTES: usize = 64 << 10;
/// A token has fewer bytes in most texts.
const TOKEN_BYTES: usize = 8;
/// The placeholder where no key says: InternVL's own layout.
const IMAGE_TOKEN: &str = "<IMG_CONTEXT>";

impl Tokenizer {
    /// `config` is the model's `config.json`, `tokenizer_config` that of the tokenizer.
    ///
    /// # Errors
    /// No tokenizer that can be read, or one with more tokens than the model; or `generation_config.json` cannot be read, or lists
    /// something else than ids.
    pub fn open(model_dir: &Path, config: &Json, tokenizer_config: &Json) -> Result<Self, DataError> {
        let (inner, path) = read(model_dir, tokenizer_config)?;
        let mut tokenizer = Self::new(inner, &path, config, tokenizer_config)?;
        // What ends an answer may end no text, and stand there alone: `<|end|>` of Phi-3, `<end_of_turn>` of Gemma 2.
        let file = model_dir.join("generation_config.json");
        let generation = read_json_if_exists(&file)?;
        let named = &generation["eos_token_id"];
        let listed = ids_of(named);
        if listed.len() != named.as_array().map_or(usize::from(!named.is_null()), Vec::len) {
            let reason = format!("eos_token_id is {named}; it must be the id of a token, or a list of ids");
            return Err(DataError::file(&file, reason));
        }
        let rows = 0..tokenizer.vocab_size;
        tokenizer.special.end.extend(listed.into_iter().filter(|id| rows.contains(id)));
        tokenizer.closing = tokenizer.special.end.iter().filter_map(|&id| tokenizer.token(id)).collect();
        Ok(tokenizer)
    }

    /// Works like [`Tokenizer::open`] with a `tokenizer.json` of any name.
    ///
    /// # Errors
    /// The file is no tokenizer that can be read, or has more tokens than the model.
    pub(super) fn of_file(path: &Path, config: &Json) -> Result<Self, DataError> {
        Self::new(read_tokenizer(path)?, path, config, &Json::Null)
    }

    /// `path` is where `inner` was read.
    fn new(
        mut inner: tokenizers::Tokenizer,
        path: &Path,
        config: &Json,
        tokenizer_config: &Json,
    ) -> Result<Self, DataError> {
        // Some files on the hub ask for padding or truncation: a training sample must be as it is.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| DataError::file(path, error))?;
        let id = |token: &str| inner.token_to_id(token).map(i64::from);

        let card = ModelCard::of(config);
        let image = card.placeholder(Tower::Vision).or_else(|| id(IMAGE_TOKEN).filter(|_| card.vision().is_some()));
        let [audio, context] = [Tower::Audio, Tower::Text].map(|tower| card.placeholder(tower));
        let text_config = card.text();
        let vocab_size = text_config["vocab_size"].as_i64().or(config["vocab_size"].as_i64());
        let largest = inner.get_vocab(true).into_values().max().map_or(0, i64::from);
        if let Some(vocab_size) = vocab_size
            && largest >= vocab_size
        {
            let grow = "with more tokens than the model was made for, set model.resize_embeddings=true";
            let what =
                format!("has token id {largest}, but the model's config.json says vocab_size {vocab_size}; {grow}");
            return Err(DataError::file(path, what));
        }
        let rows = vocab_size.unwrap_or(largest + 1);
        let named_eos = token_text(&tokenizer_config["eos_token"]).and_then(id);
        let mut end: BTreeSet<i64> = ["<|im_end|>"].into_iter().filter_map(id).collect();
        end.extend(named_eos);
        let mut first_eos = None;
        for holder in [config, text_config] {
            let ids = ids_of(&holder["eos_token_id"]);
            if let Some(id) = ids.iter().find(|id| !(0..rows.max(largest + 1)).contains(*id)) {
                let config = path.with_file_name("config.json");
                return Err(DataError::file(&config, format!("eos_token_id is {id}, but the model has {rows} tokens")));
            }
            first_eos = first_eos.or(ids.first().copied());
            end.extend(ids);
        }
        let closing = end.iter().filter_map(|&id| inner.id_to_token(u32::try_from(id).ok()?)).collect();
        let vocab_size = rows.max(largest + 1);
        let added = inner.get_added_tokens_decoder();
        let all_special: BTreeSet<i64> =
            added.iter().filter(|(_, token)| token.special).map(|(id, _)| i64::from(*id)).collect();
        let tags = CALL_TAGS.into_iter().filter_map(id).filter(|tag| all_special.contains(tag)).collect();
        Ok(Self {
            inner,
            vocab_size,
            all_special,
            special: SpecialTokens { image, audio, context, eos: named_eos.or(first_eos), end },
            closing,
            unwritten: card.encoder_decoder().map(|rules| rules.unwritten),
            tags,
        })
    }

    /// Cuts every document off behind so many tokens, those that are put around it included.
    ///
    /// # Errors
    /// There is no room for what is put around it.
    pub(super) fn cut_at(mut self, max_tokens: usize) -> Result<Self, DataError> {
        let cut = TruncationParams { max_length: max_tokens, ..TruncationParams::default() };
        self.inner.with_truncation(Some(cut)).map_err(|error| DataError::Tokenizer(error.to_string()))?;
        Ok(self)
    }

    /// Returns the number of rows that a table of embeddings needs: one more than the largest id.
    pub fn num_rows(&self) -> i64 {
        self.inner.get_vocab(true).into_values().max().map_or(0, |largest| i64::from(largest) + 1)
    }

    /// Tokens that the model has: its `vocab_size`, or those of the tokenizer where it does not say.
    pub fn vocab_size(&self) -> i64 {
        self.vocab_size
    }

    /// Returns the ids of placeholders and of the tokens that end a turn or a text, where the model has them.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// Returns whether the tokenizer has a token as special.
    pub fn is_special(&self, id: i64) -> bool {
        self.all_special.contains(&id)
    }

    /// Returns the texts of the tokens that end a turn or a text.
    pub fn closing(&self) -> &[String] {
        &self.closing
    }

    /// Returns the id of a token, special ones included; `None`: the vocabulary does not have it.
    pub fn id(&self, token: &str) -> Option<i64> {
        self.inner.token_to_id(token).map(i64::from)
    }

    /// Returns the token of an id as the vocabulary writes it; `None`: there is none.
    pub fn token(&self, id: i64) -> Option<String> {
        self.inner.id_to_token(u32::try_from(id).ok()?)
    }

    /// Returns the tokens of a text. Special tokens in the text count as such; none are added.
    ///
    /// # Errors
    /// The tokenizer fails on the text.
    pub fn encode(&self, text: &str) -> Result<Vec<Token>, DataError> {
        self.run(text, false, false)
    }

    /// Works like [`Tokenizer::encode`] with what the tokenizer puts around a document: often a token that begins it.
    ///
    /// # Errors
    /// Fails as [`Tokenizer::encode`] does.
    pub fn encode_document(&self, text: &str) -> Result<Vec<Token>, DataError> {
        self.run(text, true, false)
    }

    /// Works like [`Tokenizer::encode_document`] for the beginning of a document: without what the tokenizer puts behind one, which some
    /// end with a token.
    ///
    /// # Errors
    /// Fails as [`Tokenizer::encode`] does.
    pub fn encode_begin(&self, text: &str) -> Result<Vec<Token>, DataError> {
        self.run(text, true, true)
    }

    /// Returns how many tokens a text has at least, where these are more than `most`, without encoding all of it; `None`: it may have as
    /// many.
    ///
    /// # Errors
    /// Fails as [`Tokenizer::encode`] does.
    pub(super) fn beyond(&self, text: &str, most: usize) -> Result<Option<usize>, DataError> {
        if text.len() / TOKEN_BYTES <= most {
            return Ok(None);
        }
        // Where pieces meet they may have more tokens than the whole, but not as many more.
        let (mut rest, mut count) = (text, 0);
        while !rest.is_empty() && count / 2 <= most {
            let (piece, behind) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
            count += self.encode(piece)?.len();
            rest = behind;
        }
        Ok(Some(count / 2).filter(|count| *count > most))
    }

    /// Returns the ids of a document under [`Tokenizer::cut_at`], and whether it was cut off.
    pub(super) fn encode_cut(&self, text: &str) -> Result<(Vec<u32>, bool), DataError> {
        let encoding = self.inner.encode(text, true).map_err(|error| DataError::Tokenizer(error.to_string()))?;
        Ok((encoding.get_ids().to_vec(), !encoding.get_overflowing().is_empty()))
    }

    fn run(&self, text: &str, add_special: bool, goes_on: bool) -> Result<Vec<Token>, DataError> {
        let encoding = self.inner.encode(text, add_special).map_err(|error| DataError::Tokenizer(error.to_string()))?;
        let is_added = encoding.get_special_tokens_mask();
        let last = is_added.iter().rposition(|added| *added == 0).filter(|_| goes_on);
        let len = last.map_or(is_added.len(), |last| last + 1);
        let tokens = encoding.get_ids().iter().zip(encoding.get_offsets()).take(len);
        Ok(tokens.map(|(&id, offset)| Token { id: i64::from(id), start: offset.0 }).collect())
    }

    /// Returns the text of ids, without special tokens, except those around calls of tools; of a model whose answers hold special tokens,
    /// without those around them.
    ///
    /// # Errors
    /// The tokenizer fails on the ids.
    pub fn decode(&self, ids: &[i64]) -> Result<String, DataError> {
        let without = |is_left_out: &dyn Fn(&i64) -> bool| {
            let written: Vec<i64> = ids.iter().copied().filter(|id| !is_left_out(id)).collect();
            self.text(&written, false)
        };
        match &self.unwritten {
            Some(unwritten) => without(&|id| unwritten.contains(id)),
            None if self.tags.is_empty() => self.text(ids, true),
            None => without(&|id| self.all_special.contains(id) && !self.tags.contains(id)),
        }
    }

    /// Returns the text of ids, special tokens as they are written.
    ///
    /// # Errors
    /// Fails as [`Tokenizer::decode`] does.
    pub fn decode_all(&self, ids: &[i64]) -> Result<String, DataError> {
        self.text(ids, false)
    }

    fn text(&self, ids: &[i64], skip_special: bool) -> Result<String, DataError> {
        let ids: Vec<u32> = ids.iter().filter_map(|&id| u32::try_from(id).ok()).collect();
        self.inner.decode(&ids, skip_special).map_err(|error| DataError::Tokenizer(error.to_string()))
    }
}

/// Returns the ids that a config has under a key: one, several or none.
fn ids_of(value: &Json) -> Vec<i64> {
    match value {
        Json::Array(ids) => ids.iter().filter_map(Json::as_i64).collect(),
        one => one.as_i64().into_iter().collect(),
    }
}

/// Returns the folder's tokenizer as a `tokenizer.json` describes it, and the file that it is in: a file of that name, or a SentencePiece
/// model.
///
/// # Errors
/// There is no such file, or it cannot be read.
pub fn tokenizer_json(model_dir: &Path, tokenizer_config: &Json) -> Result<(Json, PathBuf), DataError> {
    let path = model_dir.join("tokenizer.json");
    if path.exists() {
        return Ok((read_json(&path)?, path));
    }
    let found = sentencepiece::read_as_json(model_dir, tokenizer_config)?;
    found.ok_or_else(|| DataError::file(&path, "is missing, and there is no SentencePiece model either"))
}

/// Returns the folder's tokenizer and the file that it is in.
fn read(model_dir: &Path, tokenizer_config: &Json) -> Result<(tokenizers::Tokenizer, PathBuf), DataError> {
    let path = model_dir.join("tokenizer.json");
    if path.exists() {
        return Ok((read_tokenizer(&path)?, path));
    }
    if let Some(found) = tiktoken::read(model_dir, tokenizer_config)? {
        return Ok(found);
    }
    if let Some(found) = sentencepiece::read(model_dir, tokenizer_config)? {
        return Ok(found);
    }
    let other = ["vocab.json", "vocab.txt"].into_iter().find(|name| model_dir.join(name).exists());
    let Some(other) = other else {
        // The error of a file that is not there.
        return match files::open(&path) {
            Err(error) => Err(DataError::read(&path, error)),
            Ok(_) => Err(DataError::file(&path, "appeared while the tokenizer was read")),
        };
    };
    Err(DataError::file(
        &path,
        format!(
            "is missing, and {other} has a format that is not supported: write tokenizer.json once with \
             transformers, AutoTokenizer.from_pretrained(FOLDER, trust_remote_code=True, \
             use_fast=True).save_pretrained(FOLDER)"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::data::digits::{MODEL, write_model};

    #[test]
    fn special_tokens_around_calls_of_tools_are_text() {
        let folder = tempfile::tempdir().unwrap();
        write_model(folder.path(), &MODEL).unwrap();
        let [config, named] =
            ["config.json", "tokenizer_config.json"].map(|name| read_json(&folder.path().join(name)).unwrap());
        let path = folder.path().join("tokenizer.json");
        let text = std::fs::read_to_string(&path).unwrap();
        let tagged = text.replace("<|vision_start|>", "<tool_call>").replace("<|vision_end|>", "</tool_call>");
        let call = "<tool_call>f</tool_call><|im_end|>";
        for (text, found) in [(tagged, "<tool_call>f</tool_call>"), (text, call.strip_suffix("<|im_end|>").unwrap())] {
            std::fs::write(&path, text).unwrap();
            let tokenizer = Tokenizer::open(folder.path(), &config, &named).unwrap();
            let ids: Vec<i64> = tokenizer.encode(call).unwrap().iter().map(|token| token.id).collect();
            assert_eq!(tokenizer.decode(&ids).unwrap(), found);
            assert_eq!(tokenizer.decode_all(&ids).unwrap(), call);
        }
    }

    #[test]
    fn the_beginning_of_a_document_has_no_token_that_ends_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        let special = |token: &str| json!({"SpecialToken": {"id": token, "type_id": 0}});
        let text = |name: &str| json!({"Sequence": {"id": name, "type_id": 0}});
        let ids = |token: &str, id: u32| json!({"id": token, "ids": [id], "tokens": [token]});
        let post_processor = json!({
            "type": "TemplateProcessing", "special_tokens": {"<s>": ids("<s>", 1), "</s>": ids("</s>", 2)},
            "single": [special("<s>"), text("A"), special("</s>")], "pair": [text("A"), text("B")],
        });
        let model = json!({"type": "WordLevel", "vocab": {"a": 0, "<s>": 1, "</s>": 2}, "unk_token": "a"});
        let file = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": null, "post_processor": post_processor, "decoder": null, "model": model});
        std::fs::write(&path, file.to_string()).unwrap();
        let tokenizer = Tokenizer::of_file(&path, &json!({"vocab_size": 3})).unwrap();
        let ids = |tokens: Result<Vec<Token>, DataError>| -> Vec<i64> {
            tokens.unwrap().iter().map(|token| token.id).collect()
        };
        assert_eq!(ids(tokenizer.encode_document("a")), [1, 0, 2]);
        assert_eq!(ids(tokenizer.encode_begin("a")), [1, 0]);
        assert_eq!(ids(tokenizer.encode("a")), [0]);
    }

    /// A byte is a token here, as is a special token.
    #[test]
    fn a_text_that_is_far_too_long_is_not_encoded_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        write_model(folder.path(), &MODEL).unwrap();
        let config = read_json(&folder.path().join("config.json")).unwrap();
        let tokenizer = Tokenizer::open(folder.path(), &config, &Json::Null).unwrap();
        let text = "é".repeat(100_000);
        let beyond = |text: &str, most| tokenizer.beyond(text, most).unwrap();
        assert_eq!([0, 1_000, 24_999].map(|most| beyond(&text, most)), [Some(PIECE_BYTES / 2); 3]);
        assert_eq!([25_000, usize::MAX].map(|most| beyond(&text, most)), [None; 2]);
        let special = "<|im_start|>".repeat(20_000);
        assert_eq!(beyond(&special, 20_000), None);
        assert!(beyond(&special, 9_999).is_some_and(|count| count <= 20_000));
    }

    #[test]
    fn answers_end_with_the_tokens_of_generation_too() {
        let folder = tempfile::tempdir().unwrap();
        write_model(folder.path(), &MODEL).unwrap();
        let [config, named] =
            ["config.json", "tokenizer_config.json"].map(|name| read_json(&folder.path().join(name)).unwrap());
        let open = |eos: Json| {
            let file = folder.path().join("generation_config.json");
            std::fs::write(file, json!({ "eos_token_id": eos }).to_string()).unwrap();
            Tokenizer::open(folder.path(), &config, &named)
        };
        let plain = open(Json::Null).unwrap();
        let [own, other] = ["<|im_end|>", "<|vision_end|>"].map(|token| plain.id(token).unwrap());
        assert_eq!((&plain.special().end, plain.closing()), (&BTreeSet::from([own]), &["<|im_end|>".to_owned()][..]));
        // A token that the model has not ends nothing.
        for (eos, end) in [(json!(other), vec![own, other]), (json!([own, other, 99_999_999]), vec![own, other])] {
            let tokenizer = open(eos).unwrap();
            assert_eq!(tokenizer.special().end, BTreeSet::from_iter(end));
            assert_eq!((tokenizer.special().eos, tokenizer.closing().len()), (plain.special().eos, 2));
        }
        for eos in [json!("</s>"), json!([own, "</s>"])] {
            let error = open(eos).err().unwrap().to_string();
            assert!(error.contains("generation_config.json: eos_token_id is "), "{error}");
        }
    }
}
