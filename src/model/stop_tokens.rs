//! The tokens that end an answer.

use crate::model::diffusers::read_json;
use crate::model::error::FolderError;
use crate::model::folder::ModelFolder;
use loongforge_core::data::Tokenizer;
use serde_json::Value;
use std::collections::BTreeSet;

impl ModelFolder {
    /// Returns the tokens that end an answer: those that end a turn or a text by the tokenizer and by `config.json`, and those that
    /// `generation_config.json` lists. Some published models (Phi) name the token behind a turn only in the last.
    ///
    /// # Errors
    /// That file is there, and cannot be read, is not JSON, or lists something else than ids.
    pub fn stop_token_ids(&self, tokenizer: &Tokenizer) -> Result<Vec<i64>, FolderError> {
        let mut ids: BTreeSet<i64> = tokenizer.special().end.clone();
        let path = self.path.join("generation_config.json");
        if path.is_file() {
            let listed = ids_of(&read_json(&path)?["eos_token_id"]);
            ids.extend(listed.map_err(|reason| FolderError::File { path, reason })?);
        }
        Ok(ids.into_iter().collect())
    }
}

/// Returns the ids of `eos_token_id`: one, a list, or none.
fn ids_of(value: &Value) -> Result<Vec<i64>, String> {
    let id = |value: &Value| {
        value.as_i64().ok_or_else(|| format!("eos_token_id is {value}; it must be the id of a token, or a list of ids"))
    };
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(list) => list.iter().map(id).collect(),
        one => Ok(vec![id(one)?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    #[test]
    fn answers_end_with_the_tokens_of_generation_too() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/preference/model");
        let dir = tempfile::tempdir().unwrap();
        for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
            std::fs::copy(data.join(name), dir.path().join(name)).unwrap();
        }
        let folder = ModelFolder::open_plain(dir.path()).unwrap();
        let settings = read_json(&dir.path().join("tokenizer_config.json")).unwrap();
        let tokenizer = Tokenizer::open(dir.path(), &folder.json, &settings).unwrap();
        let stops = || folder.stop_token_ids(&tokenizer).map_err(|error| error.to_string());
        let usual = stops().unwrap();
        assert!(usual.contains(&256) && !usual.contains(&7), "{usual:?}");
        let file = dir.path().join("generation_config.json");
        for (eos, more) in [(json!(null), vec![]), (json!(7), vec![7]), (json!([7, 256]), vec![7])] {
            std::fs::write(&file, json!({"eos_token_id": eos}).to_string()).unwrap();
            let expected: BTreeSet<i64> = usual.iter().copied().chain(more).collect();
            assert_eq!(stops().unwrap(), Vec::from_iter(expected), "{eos}");
        }
        std::fs::write(&file, r#"{"eos_token_id": ["</s>"]}"#).unwrap();
        let error = stops().unwrap_err();
        let expected = "eos_token_id is \"</s>\"; it must be the id of a token, or a list of ids";
        assert!(error.ends_with(&format!("generation_config.json: {expected}")), "{error}");
    }
}
