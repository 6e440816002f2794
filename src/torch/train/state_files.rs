//! Names of the files of optimizer state in a checkpoint.

use std::io;
use std::path::{Path, PathBuf};

const PREFIX: &str = "optimizer-";
const SUFFIX: &str = ".safetensors";

/// Returns the name of a part of a pool's state. The first part has the plain name: a pool without stages has no other.
pub(super) fn file_name(pool_name: &str, part: usize) -> String {
    let number = if part == 0 { String::new() } else { format!("-{:05}", part + 1) };
    format!("{PREFIX}{pool_name}{number}{SUFFIX}")
}

/// Returns the files of optimizer state that a checkpoint has, of all pools, sorted.
///
/// # Errors
/// The folder cannot be read.
pub fn state_files(checkpoint: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(checkpoint)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(PREFIX) && name.ends_with(SUFFIX) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}
