//! Errors of the observe room: something that could not be written.

use crate::files::{Appended, draft_of};
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error(
        "{path} was removed or replaced while the run was writing it: a new file starts here, without the earlier contents"
    )]
    Replaced { path: PathBuf },
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot write the picture {path}: {source}")]
    Picture { path: PathBuf, source: image::ImageError },
    #[error("log.level or RUST_LOG: {0}")]
    Filter(String),
}

impl ObserveError {
    /// Turns the result of an attempt to append to a file into an error where it failed or the file was replaced.
    pub(super) fn of_append(path: &Path, appended: std::io::Result<Appended>) -> Result<(), Self> {
        match appended {
            Ok(Appended::Further) => Ok(()),
            Ok(Appended::Anew) => Err(Self::Replaced { path: path.to_path_buf() }),
            Err(source) => Err(Self::write(path, source)),
        }
    }

    /// Says that a file cannot be written.
    pub(super) fn write(path: &Path, source: std::io::Error) -> Self {
        Self::Write { path: path.to_path_buf(), source }
    }
}

/// Saves as PNG, by way of a file beside it, so that a reader never sees half a picture.
pub(super) fn save_png(picture: &image::RgbImage, path: &Path) -> Result<(), ObserveError> {
    let draft = draft_of(path);
    if let Err(source) = picture.save_with_format(&draft, image::ImageFormat::Png) {
        // What was written of it is of no use.
        let _ = std::fs::remove_file(&draft);
        return Err(ObserveError::Picture { path: path.to_path_buf(), source });
    }
    std::fs::rename(&draft, path).map_err(|error| ObserveError::write(path, error))
}
