//! One safetensors file: its header first, then only the bytes asked for, each read where it belongs.
//!
//! Not mapped: a file that is cut short under a mapping would be a SIGBUS, here it is an error.

use super::dtype::Dtype;
use super::header::{Header, MAX_HEADER, TensorInfo};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum TensorFileError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} is not a whole safetensors file ({reason}); was its copy or download cut short?")]
    Torn { path: PathBuf, reason: String },
    #[error("{path}: {name} has type {dtype}; supported are F32, BF16, F16 and F64")]
    Dtype { path: PathBuf, name: String, dtype: Dtype },
}

/// An open file whose header was read and checked against its length.
pub struct TensorFile {
    pub(super) path: PathBuf,
    file: File,
    pub(super) header: Header,
    data_start: u64,
}

impl TensorFile {
    /// # Errors
    /// The file is missing, or its header is not one of a whole file.
    pub fn open(path: &Path) -> Result<Self, TensorFileError> {
        let io = |source| TensorFileError::Io { path: path.to_owned(), source };
        let torn = |reason: String| TensorFileError::Torn { path: path.to_owned(), reason };
        let file = loongforge_core::files::open(path).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        let mut prefix = [0; 8];
        file.read_exact_at(&mut prefix, 0).map_err(|_| torn(format!("it has only {len} bytes")))?;
        let data_start = u64::from_le_bytes(prefix).saturating_add(8);
        // The second bound is against a length that lies.
        if data_start > len || data_start > MAX_HEADER {
            return Err(torn(format!("its header ends at byte {data_start}, but it has {len} bytes")));
        }
        let mut json = vec![0; data_start as usize - 8];
        file.read_exact_at(&mut json, 8).map_err(io)?;
        let header = Header::parse(&json, data_start, len).map_err(torn)?;
        Ok(Self { path: path.to_owned(), file, header, data_start })
    }

    /// Returns the path that the file was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns type, shape and place of each tensor by its name.
    pub fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.header.tensors
    }

    /// Returns an entry of the header's `__metadata__`.
    pub fn note(&self, key: &str) -> Option<&str> {
        Some(self.header.notes.get(key)?.as_str())
    }

    /// Reads bytes of a tensor's data, from `offset` on.
    pub(crate) fn read_at(&self, info: &TensorInfo, offset: u64, bytes: &mut [u8]) -> Result<(), TensorFileError> {
        debug_assert!(offset + bytes.len() as u64 <= info.len, "bytes of the tensor");
        let io = |source| TensorFileError::Io { path: self.path.clone(), source };
        self.file.read_exact_at(bytes, self.data_start + info.start + offset).map_err(io)
    }
}
