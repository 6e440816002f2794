//! Changes of a `config.json` by the run's config: overrides of keys, and a vocabulary as large as its tokenizer.

use crate::model::diffusers::read_json;
use crate::model::error::FolderError;
use loongforge_core::data::{Section, Tokenizer};
use serde_json::{Map, Value};
use std::path::Path;

/// Raises `vocab_size` to what the tokenizer needs, wherever the model's config has it. It never falls: published tables
/// often have rows to spare.
pub(super) fn grow_vocabulary(json: &mut Value, folder: &Path) -> Result<(), FolderError> {
    let config = folder.join("tokenizer_config.json");
    let config = if config.is_file() { read_json(&config)? } else { Value::Null };
    // Without the model's config nothing bounds the ids.
    let needed = Tokenizer::open(folder, &Value::Null, &config)?.num_rows();
    for holder in Section::places_of_text(json) {
        if let Some(size) = json.pointer_mut(&format!("{holder}/vocab_size"))
            && size.as_i64().is_some_and(|size| size < needed)
        {
            *size = needed.into();
        }
    }
    Ok(())
}

/// The key of every class of transformers with a language model, which published configs may leave out.
const TIED: &str = "tie_word_embeddings";

/// Sets `key`, which must exist, or merges an object into the one there. The key that ties a language model's head need not exist.
pub(super) fn apply(json: &mut Value, key: &str, value: &Value) -> Result<(), FolderError> {
    let unknown = || FolderError::UnknownOverride { key: key.to_owned() };
    let mut place = &mut *json;
    for part in key.split('.') {
        let has_text = |keys: &Map<String, Value>| {
            ["vocab_size", "text_config", "llm_config"].into_iter().any(|key| keys.contains_key(key))
        };
        if let Some(keys) = place.as_object_mut().filter(|keys| part == TIED && has_text(keys)) {
            keys.entry(part).or_insert(Value::Null);
        }
        place = place.get_mut(part).ok_or_else(unknown)?;
    }
    match (place, value) {
        (place @ Value::Object(_), Value::Object(entries)) => {
            for (inner, value) in entries {
                apply(place, inner, value)
                    .map_err(|_| FolderError::UnknownOverride { key: format!("{key}.{inner}") })?;
            }
        }
        (place, value) => *place = value.clone(),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_vocabulary_grows_to_its_tokenizer_and_never_shrinks() {
        let dir = tempfile::tempdir().unwrap();
        let vocabulary: serde_json::Map<String, Value> = (0..12).map(|id| (format!("w{id}"), json!(id))).collect();
        let tokenizer =
            json!({"version": "1.0", "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"}});
        std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        let mut config = json!({"vocab_size": 20, "text_config": {"vocab_size": 8}});
        grow_vocabulary(&mut config, dir.path()).unwrap();
        assert_eq!(config, json!({"vocab_size": 20, "text_config": {"vocab_size": 12}}));
    }

    #[test]
    fn overrides_reach_nested_keys_and_refuse_unknown_ones() {
        let mut config = json!({"a": 1, "text": {"layers": 2, "width": 8}});
        apply(&mut config, "text.layers", &json!(3)).unwrap();
        apply(&mut config, "text", &json!({"width": 16})).unwrap();
        assert_eq!(config, json!({"a": 1, "text": {"layers": 3, "width": 16}}));
        let error = apply(&mut config, "text", &json!({"depth": 1})).unwrap_err();
        assert_eq!(error.to_string(), "model.overrides.text.depth: config.json has no such key");
    }

    /// An error of weights without a head names this override.
    #[test]
    fn a_head_may_be_tied_though_the_config_does_not_say_whether_it_is() {
        let mut config = json!({"text_config": {"vocab_size": 8}, "vision_config": {}});
        apply(&mut config, TIED, &json!(true)).unwrap();
        apply(&mut config, "text_config.tie_word_embeddings", &json!(false)).unwrap();
        assert!(apply(&mut config, "vision_config.tie_word_embeddings", &json!(true)).is_err());
        assert_eq!((&config[TIED], &config["text_config"][TIED]), (&json!(true), &json!(false)));
        assert_eq!(config["vision_config"], json!({}));
    }
}
