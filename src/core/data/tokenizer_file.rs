//! Reading `tokenizer.json` under limits: it is the one file of a model that a library of many formats takes apart.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use serde_json::Value as Json;

use super::error::DataError;
use crate::files;

/// The largest published ones have 262 thousand tokens and 33 MB, half of what is read of a file.
const MAX_TOKENS: usize = 4_000_000;
/// The slowest published ones take a second.
const MAX_TIME: Duration = Duration::from_secs(10);

/// Returns a special token in `tokenizer_config.json`: a string, or an object with `content`.
pub(super) fn token_text(token: &Json) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}

/// Reads a JSON file of a model's folder, of at most [`files::MAX_TEXT_BYTES`].
///
/// # Errors
/// The file cannot be read, or is no JSON.
pub(super) fn read_json(path: &Path) -> Result<Json, DataError> {
    let bytes = files::read(path, files::MAX_TEXT_BYTES).map_err(|error| DataError::read(path, error))?;
    serde_json::from_slice(&bytes).map_err(|error| DataError::file(path, error))
}

/// Works like [`read_json`], `null` where there is no such file.
pub(super) fn read_json_if_exists(path: &Path) -> Result<Json, DataError> {
    if path.exists() { read_json(path) } else { Ok(Json::Null) }
}

/// # Errors
/// The file is missing, too large, not a tokenizer, or takes too long to read.
pub(super) fn read_tokenizer(path: &Path) -> Result<tokenizers::Tokenizer, DataError> {
    let bytes = files::read(path, files::MAX_TEXT_BYTES).map_err(|error| DataError::read(path, error))?;
    parse(bytes).map_err(|reason| DataError::file(path, reason))
}

/// Returns the contents of such a file.
///
/// # Errors
/// The reason.
pub(super) fn parse(bytes: Vec<u8>) -> Result<tokenizers::Tokenizer, String> {
    let (send, receive) = sync_channel(1);
    let read = move || {
        // Nobody waits any more where it took too long; the process is about to end then.
        let _ = send.send(tokenizers::Tokenizer::from_bytes(&bytes));
    };
    std::thread::Builder::new().name("tokenizer".into()).spawn(read).map_err(|error| error.to_string())?;
    let tokenizer = match receive.recv_timeout(MAX_TIME) {
        Ok(read) => read.map_err(|error| error.to_string())?,
        Err(RecvTimeoutError::Timeout) => return Err(format!("takes more than {} s to read", MAX_TIME.as_secs())),
        Err(RecvTimeoutError::Disconnected) => return Err("cannot be read as a tokenizer".to_owned()),
    };
    let tokens = tokenizer.get_vocab_size(true);
    if tokens > MAX_TOKENS {
        return Err(format!("has {tokens} tokens; at most {MAX_TOKENS} are allowed"));
    }
    Ok(tokenizer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_too_large_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        std::fs::File::create(&path).unwrap().set_len(files::MAX_TEXT_BYTES + 1).unwrap();
        let error = read_tokenizer(&path).unwrap_err().to_string();
        assert!(error.contains("file of 67108865 bytes"), "{error}");
    }

    /// Files that are read must be of use or fail on each text, soon: none of these may take the process down.
    #[test]
    fn hostile_files_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        let bpe = r#"{"type": "BPE", "vocab": {"a": 0, "b": 1, "aa": 2}, "merges": [["a", "a"]]}"#;
        let split = |regex: &str| {
            let pattern = serde_json::to_string(regex).unwrap();
            format!(
                r#"{{"pre_tokenizer": {{"type": "Split", "pattern": {{"Regex": {pattern}}}, "behavior": "Isolated", "invert": false}}, "model": {bpe}}}"#
            )
        };
        let added = |tokens: &str| format!(r#"{{"added_tokens": [{tokens}], "model": {bpe}}}"#);
        let token = |id: u64, content: &str| {
            let content = serde_json::to_string(content).unwrap();
            format!(
                r#"{{"id": {id}, "content": {content}, "special": true, "single_word": false, "lstrip": true, "rstrip": true, "normalized": true}}"#
            )
        };
        let normalizer = |normalizer: &str| format!(r#"{{"normalizer": {normalizer}, "model": {bpe}}}"#);
        let nested = format!(
            "{}{{\"type\": \"NFC\"}}{}",
            r#"{"type": "Sequence", "normalizers": ["#.repeat(60),
            "]}".repeat(60)
        );
        let text = format!("{}!", "a".repeat(3000));
        for json in [
            split(r"(a+)+$"),
            split(r"(?=(a+)+b)\1"),
            split(r"(a|a)*(?!\w)b"),
            split(r"(.*)*\1(?!.)"),
            split(r"((a{0,1000}){0,1000}){0,1000}"),
            split(r"a{4294967295}"),
            split(&"(".repeat(5000)),
            split(&format!("{}a{}", "(".repeat(2000), ")".repeat(2000))),
            split(""),
            split(r"(?<=a*)b"),
            added(&[token(3, "a"), token(4, "aa"), token(5, "aaa")].join(",")),
            added(&token(3, "")),
            added(&[token(3, "x"), token(3, "y")].join(",")),
            added(&token(4294967295, "z")),
            added(&token(18446744073709551615, "z")),
            normalizer(r#"{"type": "Precompiled", "precompiled_charsmap": "AAAA"}"#),
            normalizer(r#"{"type": "Precompiled", "precompiled_charsmap": "//////////8="}"#),
            normalizer(r#"{"type": "Replace", "pattern": {"String": ""}, "content": "aaaaaaaa"}"#),
            normalizer(r#"{"type": "Prepend", "prepend": ""}"#),
            normalizer(&nested),
            r#"{"model": {"type": "Unigram", "vocab": [["a", 1e308], ["b", -1e308], ["", 0.0]], "unk_id": 7}}"#.to_owned(),
            r#"{"model": {"type": "WordPiece", "vocab": {}, "unk_token": "gone", "max_input_chars_per_word": 0, "continuing_subword_prefix": ""}}"#.to_owned(),
            r#"{"model": {"type": "WordLevel", "vocab": {}, "unk_token": "gone"}}"#.to_owned(),
            r#"{"truncation": {"max_length": 0, "strategy": "LongestFirst", "stride": 9, "direction": "Left"}, "model": {"type": "BPE", "vocab": {}, "merges": []}}"#.to_owned(),
            r#"{"decoder": {"type": "Strip", "content": "a", "start": 18446744073709551615, "stop": 9}, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}"#.to_owned(),
        ] {
            std::fs::write(&path, &json).unwrap();
            let Ok(tokenizer) = read_tokenizer(&path) else { continue };
            let encode = || tokenizer.encode(text.as_str(), false).map(|encoding| encoding.len()).map_err(|e| e.to_string());
            let encoded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(encode));
            // What panics is a bad sample too.
            let _ = encoded.map(|encoded| encoded.map(|len| assert!(len <= 8 * text.len() + 8, "{json}")));
        }
    }

    #[test]
    fn hostile_files_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        let deep = format!("{{\"model\":{}", "[".repeat(1_000_000));
        let model = r#"{"type": "BPE", "vocab": {"a": 4294967295, "b": -1}, "merges": []}"#;
        let merge = r#"{"type": "BPE", "vocab": {"a": 0}, "merges": [["x", "y"]]}"#;
        let regex = r#"{"type": "Split", "pattern": {"Regex": "(((("}, "behavior": "Isolated", "invert": false}"#;
        for text in [
            deep.clone(),
            "{}".to_owned(),
            format!(r#"{{"model": {model}}}"#),
            format!(r#"{{"model": {merge}}}"#),
            format!(r#"{{"pre_tokenizer": {regex}, "model": {{"type": "BPE", "vocab": {{"a": 0}}, "merges": []}}}}"#),
        ] {
            std::fs::write(&path, &text).unwrap();
            assert!(read_tokenizer(&path).is_err(), "{}", &text[..text.len().min(80)]);
        }
    }
}
