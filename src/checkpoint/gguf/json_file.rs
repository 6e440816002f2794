//! JSON files of a model's folder that need not be there.

use crate::checkpoint::export_error::ExportError;
use loongforge_core::files;
use serde_json::Value as Json;
use std::path::Path;

/// Reads a JSON file; `null` where there is no such file.
///
/// # Errors
/// It cannot be read, or is not JSON.
pub fn read_json(path: &Path) -> Result<Json, ExportError> {
    if !path.exists() {
        return Ok(Json::Null);
    }
    let text = files::read(path, files::MAX_TEXT_BYTES);
    let text = text.map_err(|source| ExportError::Io { path: path.to_owned(), source })?;
    serde_json::from_slice(&text).map_err(|source| ExportError::Json { path: path.to_owned(), source })
}
