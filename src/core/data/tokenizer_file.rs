//! Reading `tokenizer.json` under limits: it is the one file of a model that a library of many formats takes apart.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use super::error::DataError;

/// The largest published ones have 33 MB and 262 thousand tokens.
const MAX_BYTES: u64 = 64 << 20;
const MAX_TOKENS: usize = 4_000_000;
/// The slowest published ones take a second.
const MAX_TIME: Duration = Duration::from_secs(10);

/// # Errors
/// The file is missing, too large, not a tokenizer, or takes too long to read.
pub(super) fn read_tokenizer(path: &Path) -> Result<tokenizers::Tokenizer, DataError> {
    let len = std::fs::metadata(path).map_err(|error| DataError::read(path, error))?.len();
    if len > MAX_BYTES {
        return Err(DataError::file(path, format!("has {len} bytes; a tokenizer has at most {MAX_BYTES}")));
    }
    let bytes = std::fs::read(path).map_err(|error| DataError::read(path, error))?;
    let (send, receive) = sync_channel(1);
    let read = move || {
        // Nobody waits any more where it took too long; the process is about to end then.
        let _ = send.send(tokenizers::Tokenizer::from_bytes(&bytes));
    };
    std::thread::Builder::new().name("tokenizer".into()).spawn(read).map_err(|error| DataError::read(path, error))?;
    let tokenizer = match receive.recv_timeout(MAX_TIME) {
        Ok(read) => read.map_err(|error| DataError::file(path, error))?,
        Err(RecvTimeoutError::Timeout) => {
            return Err(DataError::file(path, format!("is still not read after {} s", MAX_TIME.as_secs())));
        }
        Err(RecvTimeoutError::Disconnected) => return Err(DataError::file(path, "cannot be read as a tokenizer")),
    };
    let tokens = tokenizer.get_vocab_size(true);
    if tokens > MAX_TOKENS {
        return Err(DataError::file(path, format!("has {tokens} tokens; at most {MAX_TOKENS} are read")));
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
        std::fs::File::create(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        let error = read_tokenizer(&path).unwrap_err().to_string();
        assert!(error.contains("has 67108865 bytes"), "{error}");
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
