//! Files of the folders that other programs read.

use crate::observe::error::ObserveError;
use std::fs;
use std::path::Path;

/// Writes a file, in a folder that is made where it is missing.
///
/// # Errors
/// It cannot be written.
pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), ObserveError> {
    let written = fs::create_dir_all(path.parent().unwrap_or(path)).and_then(|()| fs::write(path, bytes));
    written.map_err(|error| ObserveError::write(path, error))
}

/// Writes by way of a file beside it, so that a reader never sees half of it.
///
/// # Errors
/// It cannot be written.
pub(super) fn write_whole(path: &Path, text: &str) -> Result<(), ObserveError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let part = path.with_file_name(format!(".{name}.part"));
    fs::write(&part, text).and_then(|()| fs::rename(&part, path)).map_err(|error| ObserveError::write(path, error))
}

/// A name that MLflow takes, and that is a path: other characters than letters, digits and `_ - . : / ` and space become `_`, and no part of it leads out
/// of its folder.
pub(super) fn safe_name(name: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || "_-.:/ ".contains(c) { c } else { '_' };
    let part = |part: &str| match part {
        "" | "." | ".." => "_".to_owned(),
        part => part.chars().map(plain).collect(),
    };
    name.split('/').map(part).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_nowhere_else() {
        let names = ["eval/a b/loss", "../x", "a//b?c"].map(safe_name);
        assert_eq!(names, ["eval/a b/loss", "_/x", "a/_/b_c"]);
    }
}
