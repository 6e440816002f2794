//! Errors of the observe room: something that could not be written.

use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot write the picture {path}: {source}")]
    Picture { path: PathBuf, source: image::ImageError },
    #[error("log.level or RUST_LOG: {0}")]
    Filter(String),
}

impl ObserveError {
    pub(super) fn write(path: &Path, source: std::io::Error) -> Self {
        Self::Write { path: path.to_path_buf(), source }
    }
}

/// Saves as PNG, by way of a file beside it, so that a reader never sees half a picture.
pub(super) fn save_png(picture: &image::RgbImage, path: &Path) -> Result<(), ObserveError> {
    let part = path.with_extension("png.part");
    picture
        .save_with_format(&part, image::ImageFormat::Png)
        .map_err(|source| ObserveError::Picture { path: path.to_path_buf(), source })?;
    std::fs::rename(&part, path).map_err(|error| ObserveError::write(path, error))
}
