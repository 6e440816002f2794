//! The errors of checkpoints, always with the path.

use super::names::{FORMAT_VERSION, MANIFEST};
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("cannot write {path}: {source}; is the folder writable, and is there space on the disk?")]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is not a checkpoint: it has no {MANIFEST}")]
    Missing { path: PathBuf },
    #[error("checkpoint {path} is damaged: {what}")]
    Torn { path: PathBuf, what: String },
    #[error(
        "checkpoint {path} has format version {found} ({MANIFEST}), but this version of loongforge reads 1 to {FORMAT_VERSION}"
    )]
    OtherVersion { path: PathBuf, found: u64 },
}

impl CheckpointError {
    /// Makes of an I/O error that a path cannot be written.
    pub fn write(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |source| Self::Write { path, source }
    }

    /// Makes of an I/O error that a path cannot be read.
    pub fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |source| Self::Read { path, source }
    }

    /// Says that a file is not what the manifest says.
    pub fn changed(dir: &Path, name: &str) -> Self {
        Self::torn(dir, format!("the contents of {name} changed since it was written"))
    }

    /// Creates the error of a torn checkpoint, or of a file of one.
    pub fn torn(path: &Path, what: impl ToString) -> Self {
        Self::Torn { path: path.to_owned(), what: what.to_string() }
    }
}
