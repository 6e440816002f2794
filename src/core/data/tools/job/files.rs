//! Files beside the shards.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::data::error::{BadSample, DataError};
use crate::data::tools::shard::write_whole;
use crate::files::if_there;

pub(in crate::data::tools) const HOME: &str = ".loongforge";

/// Writes one bad sample a line; no file where there is none.
///
/// # Errors
/// The file cannot be written.
pub fn list_bad(path: &Path, bad: &[BadSample]) -> Result<(), DataError> {
    if bad.is_empty() {
        return if_there(fs::remove_file(path)).map(drop).map_err(|error| DataError::write(path, error));
    }
    let mut lines = Vec::new();
    for sample in bad {
        serde_json::to_writer(&mut lines, sample).map_err(|error| DataError::file(path, error))?;
        lines.push(b'\n');
    }
    write_whole(path, &lines)
}

/// Returns where it is written what a group of samples came to.
pub(super) fn group_path(out: &Path, index: u64) -> PathBuf {
    out.join(HOME).join(format!("group-{index:06}.json"))
}

/// `None` where there is no such file, or half of one.
pub(in crate::data::tools) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, DataError> {
    let bytes = if_there(fs::read(path)).map_err(|error| DataError::read(path, error))?;
    Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

/// Writes a JSON file whole: others see all of it or none.
///
/// # Errors
/// It cannot be written.
pub(in crate::data::tools) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), DataError> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(|error| DataError::file(path, error))?;
    bytes.push(b'\n');
    write_whole(path, &bytes)
}
