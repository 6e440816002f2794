//! The weights in a Hugging Face folder: one file or shards with an index, and the tensors in them under the names that
//! models use, whatever they are packed in.

use super::components::{self, NamedFile};
use super::dtype::Dtype;
use super::error::WeightsError;
use super::file::TensorFile;
use super::header::TensorInfo;
use super::layout::pieces_in;
use super::names_in::NamesIn;
use super::opening::{WHOLE, open_in, read_json};
use super::stored::{Quantization, Stored, gather};
use loongforge_core::data::MODEL_INDEX;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::params::{ParamSpec, StoredTensor};

/// The one file of a folder of adapters, as PEFT names it.
pub const ADAPTER_FILE: &str = "adapter_model.safetensors";

pub const SINGLE_FILE: &str = "model.safetensors";
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// An open folder. Every header was read and checked; nothing of the data.
pub struct Checkpoint {
    folder: PathBuf,
    files: Vec<TensorFile>,
    tensors: BTreeMap<String, Stored>,
}

impl Checkpoint {
    /// Opens the folder's index, or its one file; of a diffusion model those of every network. The path may also be one file.
    ///
    /// # Errors
    /// There are no safetensors, a file is torn, the index does not fit the files, or the quantization is unknown.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        Self::open_for(path, |_| true)
    }

    /// Works like [`Checkpoint::open`]; the files of a diffusion model's networks are opened where the network of this name is
    /// wanted.
    ///
    /// # Errors
    /// Fails as [`Checkpoint::open`] does.
    pub fn open_for(path: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<Self, WeightsError> {
        Self::of(path, files_of(path, &is_wanted)?)
    }

    /// Works like [`Checkpoint::open`], and closes files without tensors of these parameters. Open ones can be read after the folder was
    /// removed, and take their space on the disk until then.
    ///
    /// # Errors
    /// Fails as [`Checkpoint::open`] does.
    pub fn open_of(path: &Path, specs: &[ParamSpec]) -> Result<Self, WeightsError> {
        let whole = Self::open(path)?;
        let pieces = specs.iter().flat_map(|spec| whole.pieces(spec));
        let wanted: BTreeSet<String> = pieces.map(|piece| piece.name).collect();
        let mut found = files_of(path, &|_| true)?;
        found.retain(|(file, names)| file.tensors().keys().any(|name| wanted.contains(&names.ours(name))));
        Self::of(path, found)
    }

    /// Works like [`Checkpoint::open`], or the adapters of a folder that has no weights beside them.
    ///
    /// # Errors
    /// Fails as [`Checkpoint::open`] does.
    pub fn open_any(folder: &Path) -> Result<Self, WeightsError> {
        if is_adapter(folder) {
            Self::of(folder, plain(vec![TensorFile::open(&folder.join(ADAPTER_FILE))?]))
        } else {
            Self::open(folder)
        }
    }

    fn of(folder: &Path, files: Vec<NamedFile>) -> Result<Self, WeightsError> {
        let config = folder.join("config.json");
        let config = if config.is_file() { read_json(&config)? } else { Value::Null };
        let wrong = |reason| WeightsError::Quantization { folder: folder.to_owned(), reason };
        let quantization = Quantization::read(&config).map_err(wrong)?;
        let (files, names): (Vec<TensorFile>, Vec<NamesIn>) = files.into_iter().unzip();
        let tensors = gather(&files, &names, &quantization).map_err(wrong)?;
        Ok(Self { folder: folder.to_owned(), files, tensors })
    }

    /// Returns the folder that was opened.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the opened files.
    pub fn files(&self) -> &[TensorFile] {
        &self.files
    }

    /// Returns the tensors by the models' names: packed ones are one entry, with the shape that they unpack to.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &Stored)> {
        self.tensors.iter().map(|(name, stored)| (name.as_str(), stored))
    }

    /// Returns where the tensor of this name lies.
    pub fn get(&self, name: &str) -> Option<&Stored> {
        self.tensors.get(name)
    }

    /// Returns the pieces of a parameter as this folder has them.
    pub fn pieces(&self, spec: &ParamSpec) -> Vec<StoredTensor> {
        pieces_in(spec, &|name| self.get(name))
    }

    /// Returns whether a tensor is stored in packed form.
    pub fn is_quantized(&self) -> bool {
        self.tensors.values().any(Stored::is_packed)
    }

    /// Returns the file of a stored tensor, and what its header says of it.
    pub(super) fn place(&self, at: &super::stored::TensorPlace) -> (&TensorFile, &TensorInfo) {
        let file = &self.files[at.file];
        (file, &file.tensors()[&at.name])
    }
}

/// Returns the files of a folder, of a diffusion model those of the networks that are wanted.
fn files_of(path: &Path, is_wanted: &dyn Fn(&str) -> bool) -> Result<Vec<NamedFile>, WeightsError> {
    match components::open(path, is_wanted)? {
        Some(found) => Ok(found),
        None => Ok(plain(open_in(path, WHOLE)?)),
    }
}

fn plain(files: Vec<TensorFile>) -> Vec<NamedFile> {
    let names = NamesIn::of_model(&files);
    files.into_iter().map(|file| (file, names)).collect()
}

/// Returns the number of bytes of values of a type.
pub(super) fn num_bytes(shape: &[i64], dtype: Dtype) -> u64 {
    shape.iter().product::<i64>() as u64 * dtype.bits() / 8
}

/// Returns whether a folder holds adapters and no weights.
pub fn is_adapter(folder: &Path) -> bool {
    let is_there = |name: &str| folder.join(name).is_file();
    is_there(ADAPTER_FILE) && ![INDEX_FILE, SINGLE_FILE, MODEL_INDEX].into_iter().any(is_there)
}
