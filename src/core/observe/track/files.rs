//! Files of the folders that other programs read.

use crate::files::replace;
use crate::observe::error::ObserveError;
use crate::text::hex;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::Path;

/// Bytes of a part of a name: file systems take 255, among them an ending.
const MAX_PART: usize = 180;

/// Writes a file, in a folder that is made where it is missing.
///
/// # Errors
/// It cannot be written.
pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), ObserveError> {
    let written = fs::create_dir_all(path.parent().unwrap_or(path)).and_then(|()| fs::write(path, bytes));
    written.map_err(|error| ObserveError::write(path, error))
}

/// Writes a file as [`replace`] does: a reader never sees half of it.
///
/// # Errors
/// It cannot be written.
pub(super) fn write_whole(path: &Path, text: &str) -> Result<(), ObserveError> {
    replace(path, text.as_bytes()).map_err(|error| ObserveError::write(path, error))
}

/// Returns a name that MLflow takes, and that is a path: other characters than letters, digits and `_ - . : / ` and space become `_`, and
/// no part of it leads out of its folder.
pub(super) fn safe_name(name: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || "_-.:/ ".contains(c) { c } else { '_' };
    let part = |part: &str| match part {
        "" | "." | ".." => "_".to_owned(),
        part => shortened(part.chars().map(plain).collect(), part),
    };
    name.split('/').map(part).collect::<Vec<_>>().join("/")
}

/// Returns the beginning of a part that is too long, with a hash of the part as it was `before`; another part as it is.
fn shortened(mut part: String, before: &str) -> String {
    if part.len() > MAX_PART {
        let end = (0..=MAX_PART).rev().find(|at| part.is_char_boundary(*at)).unwrap_or(0);
        part.truncate(end);
        part = format!("{part}_{}", &hex(Sha256::digest(before))[..16]);
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_nowhere_else() {
        let names = ["eval/a b/loss", "../x", "a//b?c"].map(safe_name);
        assert_eq!(names, ["eval/a b/loss", "_/x", "a/_/b_c"]);
    }

    /// The names are as long as a pattern of modules among the keys of a config.
    #[test]
    fn long_names_are_shortened_and_differ() {
        let names = ["a|", "ä|", "aa"].map(|begin| format!("x/{}", begin.repeat(150)));
        let safe = names.each_ref().map(|name| safe_name(name));
        assert!(safe.iter().all(|name| name.starts_with("x/") && name.len() < 200), "{safe:?}");
        assert!(safe[0] != safe[1] && safe[1] != safe[2] && safe[0] != safe[2], "{safe:?}");
        assert_eq!(safe_name(&names[0]), safe[0]);
    }
}
