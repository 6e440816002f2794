//! Describes whether the folders that a run writes into may be written, as far as that is known before they are there.

use loongforge_core::config::RunConfig;
use rustix::fs::{Access, access};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Why a folder cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{key}: cannot write into {}: {}: {source}; name a folder that you may write into", dir.display(), at.display())]
pub struct FolderProblem {
    key: &'static str,
    dir: PathBuf,
    /// The folder itself, or the deepest of those above it that is there.
    at: PathBuf,
    source: io::Error,
}

/// Refuses folders of a run that it could not make, or not write into.
///
/// # Errors
/// The first of them.
pub fn check(config: &RunConfig) -> Result<(), FolderProblem> {
    let folders = [("run.dir", &config.run.dir), ("checkpoint.dir", &config.checkpoint.dir)];
    folders.into_iter().try_for_each(|(key, dir)| {
        let Some(at) = deepest(dir) else { return Ok(()) };
        let asked = match at.is_dir() {
            true => access(at, Access::WRITE_OK | Access::EXEC_OK).map_err(io::Error::from),
            false => Err(ErrorKind::NotADirectory.into()),
        };
        asked.map_err(|source| FolderProblem { key, dir: dir.clone(), at: at.to_owned(), source })
    })
}

/// Returns the deepest part of a path that is there.
fn deepest(dir: &Path) -> Option<&Path> {
    let mut parts = dir.ancestors().map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    parts.find(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_of_a_path_that_is_there_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(deepest(&dir.path().join("a/b")), Some(dir.path()));
        assert_eq!(deepest(&file.join("below")), Some(file.as_path()));
        assert_eq!(deepest(Path::new("no-such-folder/below")), Some(Path::new(".")));
    }
}
