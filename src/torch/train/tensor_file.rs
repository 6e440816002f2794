//! Safetensors files: the header first, then only the tensors asked for, each read into memory of its own.
//!
//! Not mapped: a file that is cut short under a mapping would be a SIGBUS, here it is an error.

use loongforge_core::message::SavedFile;
use safetensors::tensor::{Dtype, Metadata, View};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tch::{Kind, Tensor};

/// Bytes of a header; a model of a million tensors stays below.
const MAX_HEADER: u64 = 100_000_000;

#[derive(Debug, thiserror::Error)]
pub enum TensorFileError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} is not a whole safetensors file ({reason}); was its copy or download cut short?")]
    Torn { path: PathBuf, reason: String },
    #[error("{path}: {name} has type {dtype:?}; supported are F32, BF16 and F16")]
    Dtype { path: PathBuf, name: String, dtype: Dtype },
}

/// An open file whose header was read and checked against its length.
pub(super) struct TensorFile {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    data_start: u64,
}

impl TensorFile {
    pub(super) fn open(path: &Path) -> Result<Self, TensorFileError> {
        let io = |source| TensorFileError::Io { path: path.to_owned(), source };
        let torn = |reason: String| TensorFileError::Torn { path: path.to_owned(), reason };
        let file = File::open(path).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        let mut prefix = [0; 8];
        file.read_exact_at(&mut prefix, 0).map_err(|error| torn(error.to_string()))?;
        let data_start = u64::from_le_bytes(prefix).saturating_add(8);
        // The second bound is safetensors' own, against a length that lies.
        if data_start > len || data_start > MAX_HEADER {
            return Err(torn(format!("its header ends at byte {data_start} of {len}")));
        }
        let mut header = vec![0; data_start as usize];
        file.read_exact_at(&mut header, 0).map_err(io)?;
        let metadata: Metadata = serde_json::from_slice(&header[8..]).map_err(|error| torn(error.to_string()))?;
        let end = data_start + metadata.data_len() as u64;
        if end != len {
            return Err(torn(format!("it has {len} bytes and its header promises {end}")));
        }
        Ok(Self { path: path.to_owned(), file, metadata, data_start })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// An entry of the header's `__metadata__`.
    pub(super) fn note(&self, key: &str) -> Option<&str> {
        Some(self.metadata.metadata().as_ref()?.get(key)?.as_str())
    }

    pub(super) fn shape(&self, name: &str) -> Option<&[usize]> {
        Some(&self.metadata.info(name)?.shape)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.metadata.offset_keys().into_iter()
    }

    /// Reads one tensor onto the CPU; `None` where the file has no such name.
    pub(super) fn read(&self, name: &str) -> Result<Option<Tensor>, TensorFileError> {
        let Some(info) = self.metadata.info(name) else { return Ok(None) };
        let kind = match info.dtype {
            Dtype::F32 => Kind::Float,
            Dtype::BF16 => Kind::BFloat16,
            Dtype::F16 => Kind::Half,
            dtype => return Err(TensorFileError::Dtype { path: self.path.clone(), name: name.to_owned(), dtype }),
        };
        let (start, end) = info.data_offsets;
        let mut bytes = vec![0; end - start];
        let io = |source| TensorFileError::Io { path: self.path.clone(), source };
        self.file.read_exact_at(&mut bytes, self.data_start + start as u64).map_err(io)?;
        let shape: Vec<i64> = info.shape.iter().map(|&dim| dim as i64).collect();
        Ok(Some(Tensor::from_data_size(&bytes, &shape, kind)))
    }
}

/// Writes `folder/name`, makes it durable and hashes it. `notes` become the header's `__metadata__`.
pub(super) fn write_tensor_file(
    tensors: Vec<(String, Tensor)>,
    notes: &[(&str, &str)],
    folder: &Path,
    name: &str,
) -> Result<SavedFile, TensorFileError> {
    let path = folder.join(name);
    let io = |source| TensorFileError::Io { path: path.clone(), source };
    let names = tensors.iter().map(|(name, _)| name.clone()).collect();
    let notes = notes.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    let views: BTreeMap<String, TensorBytes> =
        tensors.into_iter().map(|(name, tensor)| (name, TensorBytes::new(&tensor))).collect();
    safetensors::serialize_to_file(views, Some(notes), &path).map_err(|error| io(io::Error::other(error)))?;
    let mut file = File::open(&path).map_err(io)?;
    file.sync_all().map_err(io)?;
    let (mut hash, mut bytes, mut block) = (Sha256::new(), 0, vec![0; 1 << 20]);
    loop {
        let len = file.read(&mut block).map_err(io)?;
        if len == 0 {
            break;
        }
        hash.update(&block[..len]);
        bytes += len as u64;
    }
    let sha256 = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(SavedFile { name: name.to_owned(), bytes, sha256, tensors: names })
}

/// A tensor as safetensors wants to see it.
struct TensorBytes {
    dtype: Dtype,
    shape: Vec<usize>,
    tensor: Tensor,
}

impl TensorBytes {
    fn new(tensor: &Tensor) -> Self {
        let tensor = tensor.detach().to_device(tch::Device::Cpu).contiguous();
        let dtype = match tensor.kind() {
            Kind::Float => Dtype::F32,
            Kind::BFloat16 => Dtype::BF16,
            Kind::Half => Dtype::F16,
            other => panic!("a parameter of kind {other:?}"),
        };
        Self { dtype, shape: tensor.size().iter().map(|&dim| dim as usize).collect(), tensor }
    }
}

impl View for TensorBytes {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let mut bytes = vec![0; self.data_len()];
        self.tensor.copy_data_u8(&mut bytes, self.tensor.numel());
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        self.tensor.numel() * self.tensor.kind().elt_size_in_bytes()
    }
}
