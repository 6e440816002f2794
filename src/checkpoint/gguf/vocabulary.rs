//! A tokenizer as the metadata of llama.cpp: tokens with their types, and merges or scores.

use super::byte_level;
use super::container::{Metadata, Value};
use super::special::special_tokens;
use super::tokens::Files;
use super::word_pieces;
use serde_json::Value as Json;

/// Returns the keys `tokenizer.*` of a model whose table of embeddings has `rows` rows; `config` is its `config.json`, `template` its
/// chat template.
///
/// # Errors
/// llama.cpp has no tokenizer like this one: says by what.
pub fn vocabulary(files: &Files, config: &Json, rows: usize, template: Option<String>) -> Result<Metadata, String> {
    let model = &files.json["model"];
    let kind = model["type"].as_str().unwrap_or("BPE");
    if kind != "BPE" {
        return Err(format!(
            "model.type is {kind}, but only BPE tokenizers, on bytes or with byte_fallback, can be written for llama.cpp"
        ));
    }
    let is_byte_level = files.json["decoder"]["type"] == "ByteLevel" || byte_level::is_in(&files.json["pre_tokenizer"]);
    let mut metadata: Metadata = Vec::new();
    let mut put = |key: &str, value: Value| metadata.push((format!("tokenizer.{key}"), value));
    let (tokens, merges) = if is_byte_level {
        put("ggml.model", "gpt2".into());
        put("ggml.pre", byte_level::pre_tokenizer(&files.json)?.into());
        (byte_level::tokens(files, rows)?, Some(byte_level::merges(model)?))
    } else {
        put("ggml.model", "llama".into());
        put("ggml.pre", "default".into());
        put("ggml.add_space_prefix", Value::Bool(word_pieces::begins_with_blank(&files.json)?));
        (word_pieces::tokens(files, rows)?, None)
    };
    put("ggml.tokens", Value::Texts(tokens.iter().map(|token| token.text.clone()).collect()));
    if merges.is_none() {
        put("ggml.scores", Value::Floats(tokens.iter().map(|token| token.score).collect()));
    }
    put("ggml.token_type", Value::Integers(tokens.iter().map(|token| token.kind).collect()));
    if let Some(merges) = merges {
        put("ggml.merges", Value::Texts(merges));
    }
    metadata.extend(special_tokens(files, config, rows));
    metadata.extend(template.map(|template| ("tokenizer.chat_template".to_owned(), Value::Text(template))));
    Ok(metadata)
}
