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
        let json = serde_json::from_slice(&line).map_err(|error| wrong(error.to_string()))?;
        take(json).map_err(wrong)?;
    }
    Ok(())
}
