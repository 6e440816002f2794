//! The file of a checkpoint that says how many actions of a chunk its policy has learned to be given (real-time chunking): lerobot's
//! files have no place for it.

use std::path::Path;

use serde_json::{Value as Json, json};

use crate::data::error::DataError;
use crate::files;

pub const FILE: &str = "policy_delay.json";

/// Returns the file of a policy that was trained with this `policy.max_delay`.
pub fn write(max_delay: usize) -> Vec<u8> {
    format!("{:#}\n", json!({ "max_delay": max_delay })).into_bytes()
}

/// Returns the most actions that the model in `folder` has learned to be given; `None` where it has no such file, as lerobot's folders.
///
/// # Errors
/// Named by the file: it is wrong.
pub fn read(folder: &Path) -> Result<Option<usize>, DataError> {
    let path = folder.join(FILE);
    if !path.is_file() {
        return Ok(None);
    }
    let bytes = files::read(&path, files::MAX_TEXT_BYTES).map_err(|error| DataError::read(&path, error))?;
    let json: Json = serde_json::from_slice(&bytes).map_err(|error| DataError::file(&path, error))?;
    let count = json["max_delay"].as_u64().and_then(|count| usize::try_from(count).ok());
    let wrong =
        || DataError::file(&path, format!("`max_delay` is {:.80}, not a whole number", json["max_delay"].to_string()));
    count.map(Some).ok_or_else(wrong)
}
