//! The weights in a Hugging Face folder: one file or shards with an index, and the tensors in them under the names that
//! models use, whatever they are packed in.

use super::components::{self, NamedFile, NamesIn};
use super::dtype::Dtype;
use super::error::WeightsError;
use super::file::TensorFile;
use super::header::TensorInfo;
use super::layout::pieces_in;
use super::stored::{Quantization, Stored, gather};
use loongforge_core::data::MODEL_INDEX;
use loongforge_core::files;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::params::{ParamSpec, StoredTensor};

/// The one file of a folder of adapters, as PEFT names it.
pub const ADAPTER_FILE: &str = "adapter_model.safetensors";

pub const SINGLE_FILE: &str = "model.safetensors";
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// Bytes of `config.json` or an index at most.
const MAX_JSON: u64 = 256 << 20;

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
    /// As [`Checkpoint::open`].
    pub fn open_for(path: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<Self, WeightsError> {
        let found = match components::open(path, &is_wanted)? {
            Some(found) => found,
            None => plain(open_in(path, WHOLE)?),
        };
        Self::of(path, found)
    }

    /// Works like [`Checkpoint::open`], or the adapters of a folder that has no weights beside them.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
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

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn files(&self) -> &[TensorFile] {
        &self.files
    }

    /// The tensors by the models' names: packed ones are one entry, with the shape that they unpack to.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &Stored)> {
        self.tensors.iter().map(|(name, stored)| (name.as_str(), stored))
    }

    pub fn get(&self, name: &str) -> Option<&Stored> {
        self.tensors.get(name)
    }

    /// The pieces of a parameter as this folder has them.
    pub fn pieces(&self, spec: &ParamSpec) -> Vec<StoredTensor> {
        pieces_in(spec, &|name| self.get(name))
    }

    pub fn is_quantized(&self) -> bool {
        self.tensors.values().any(Stored::is_packed)
    }

    pub(super) fn place(&self, at: &super::stored::Place) -> (&TensorFile, &TensorInfo) {
        let file = &self.files[at.file];
        (file, &file.tensors()[&at.name])
    }
}

/// What the files of a model's weights are called: what comes before `.safetensors`, or `.safetensors.index.json`.
pub(super) const WHOLE: &str = "model";

/// The files of a folder, whose names begin with `stem`.
///
/// # Errors
/// As [`Checkpoint::open`].
pub(super) fn open_in(folder: &Path, stem: &str) -> Result<Vec<TensorFile>, WeightsError> {
    let index = folder.join(format!("{stem}.safetensors.index.json"));
    if index.is_file() {
        return open_shards(folder, &index);
    }
    let single = folder.join(format!("{stem}.safetensors"));
    if single.is_file() {
        return Ok(vec![TensorFile::open(&single)?]);
    }
    let folder = folder.to_owned();
    Err(match (find_pickle(&folder), stem == WHOLE) {
        (Some(file), true) => WeightsError::Pickle { folder, file },
        (Some(file), false) => WeightsError::PickledNetwork { folder, file },
        (None, _) => WeightsError::NoWeights { folder, stem: stem.to_owned() },
    })
}

fn plain(files: Vec<TensorFile>) -> Vec<NamedFile> {
    files.into_iter().map(|file| (file, NamesIn::default())).collect()
}

/// A file of the kind that runs code when it is opened.
pub(super) fn find_pickle(folder: &Path) -> Option<String> {
    let names = fs::read_dir(folder).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut found: Vec<String> = names
        .filter(|name| [".bin", ".pt", ".pth", ".ckpt", ".pkl"].iter().any(|ending| name.ends_with(ending)))
        .collect();
    found.sort();
    // The usual name first: a folder may hold other such files.
    found.iter().find(|name| name.starts_with("pytorch_model")).or(found.first()).cloned()
}

fn open_shards(folder: &Path, index: &Path) -> Result<Vec<TensorFile>, WeightsError> {
    let wrong = |reason: String| WeightsError::Index { path: index.to_owned(), reason };
    let json = read_json(index)?;
    let places = json["weight_map"].as_object().ok_or_else(|| wrong("it has no object `weight_map`".into()))?;
    let mut names = BTreeSet::new();
    for (tensor, file) in places {
        let file = file.as_str().ok_or_else(|| wrong(format!("weight_map.{tensor} is not a file name")))?;
        if Path::new(file).file_name().is_none_or(|last| last != file) {
            return Err(wrong(format!("weight_map.{tensor} leads out of the folder: {file}")));
        }
        names.insert(file);
    }
    if names.is_empty() {
        return Err(wrong("its `weight_map` is empty".into()));
    }
    let missing: Vec<&str> = names.iter().copied().filter(|name| !folder.join(name).is_file()).collect();
    if let Some(first) = missing.first() {
        let count = missing.len();
        let others = if count > 1 { format!(", and {} more shards", count - 1) } else { String::new() };
        return Err(wrong(format!("it names {first}, which is not in {}{others}", folder.display())));
    }
    let files = names.iter().map(|name| TensorFile::open(&folder.join(name))).collect::<Result<Vec<_>, _>>()?;
    let by_name: BTreeMap<&str, &TensorFile> = names.iter().copied().zip(&files).collect();
    for (tensor, file) in places {
        let file = file.as_str().unwrap_or_default();
        if !by_name[file].tensors().contains_key(tensor) {
            return Err(wrong(format!("it says that {tensor} is in {file}, which has no such tensor")));
        }
    }
    let mut seen: BTreeMap<&String, &TensorFile> = BTreeMap::new();
    for file in &files {
        for tensor in file.tensors().keys() {
            if let Some(other) = seen.insert(tensor, file) {
                let (left, right) = (other.path().display(), file.path().display());
                return Err(wrong(format!("{tensor} is in {left} and in {right}")));
            }
        }
    }
    Ok(files)
}

/// Reads a file of bounded size as JSON.
pub(super) fn read_json(path: &Path) -> Result<Value, WeightsError> {
    let wrong = |reason: String| WeightsError::Index { path: path.to_owned(), reason };
    let text = files::read(path, MAX_JSON).map_err(|error| wrong(error.to_string()))?;
    serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))
}

/// Bytes of values of a type.
pub(super) fn num_bytes(shape: &[i64], dtype: Dtype) -> u64 {
    shape.iter().product::<i64>() as u64 * dtype.bits() / 8
}

/// Returns whether a folder holds adapters and no weights.
pub fn is_adapter(folder: &Path) -> bool {
    let is_there = |name: &str| folder.join(name).is_file();
    is_there(ADAPTER_FILE) && ![INDEX_FILE, SINGLE_FILE, MODEL_INDEX].into_iter().any(is_there)
}
