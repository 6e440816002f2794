//! Files of one JSON object a line, as sets of version 2 describe their episodes, tasks and statistics.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde_json::Value as Json;

use crate::data::error::DataError;
use crate::files;

/// Bytes of one line: the statistics of an episode take a few kB.
const MAX_LINE: u64 = 16 << 20;

/// Calls `take` with each object of a file.
///
/// # Errors
/// Named by the file and the line: missing, too long, no JSON, or what `take` says.
pub fn for_each_line(path: &Path, mut take: impl FnMut(Json) -> Result<(), String>) -> Result<(), DataError> {
    let mut reader = BufReader::new(files::open(path).map_err(|error| DataError::read(path, error))?);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = reader.by_ref().take(MAX_LINE + 1).read_until(b'\n', &mut line);
        if read.map_err(|error| DataError::read(path, error))? == 0 {
            break;
        }
        let wrong = |reason: String| DataError::file(path, format!("line {number}: {reason}"));
        if line.len() as u64 > MAX_LINE {
            return Err(wrong(format!("is longer than {} MiB", MAX_LINE >> 20)));
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let json = of_python(&line).map_err(|error| wrong(error.to_string()))?;
        take(json).map_err(wrong)?;
    }
    Ok(())
}

/// Parses JSON as Python writes it: numbers that are not finite, which JSON has no words for, become `null`.
///
/// # Errors
/// It is no JSON.
pub fn of_python(text: &[u8]) -> Result<Json, serde_json::Error> {
    serde_json::from_slice(text).or_else(|error| match without_words(text) {
        Some(text) => serde_json::from_slice(&text),
        None => Err(error),
    })
}

/// Returns the text with `null` for every `NaN`, `Infinity` and `-Infinity` outside of quotes; `None`: it has none.
fn without_words(text: &[u8]) -> Option<Vec<u8>> {
    let (mut changed, mut at, mut quoted, mut found) = (Vec::with_capacity(text.len()), 0, false, false);
    while let Some(&byte) = text.get(at) {
        let word = [&b"NaN"[..], b"Infinity", b"-Infinity"].into_iter().find(|word| text[at..].starts_with(word));
        if let Some(word) = word.filter(|_| !quoted) {
            changed.extend_from_slice(b"null");
            (at, found) = (at + word.len(), true);
            continue;
        }
        // What a stroke stands before in a quote ends nothing.
        let len = if quoted && byte == b'\\' { 2 } else { 1 };
        quoted ^= byte == b'"';
        changed.extend(text[at..].iter().take(len));
        at += len;
    }
    found.then_some(changed)
}
