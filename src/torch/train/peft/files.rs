//! The tensors of one file of adapters, or of the two files that ComfyUI and kohya's scripts have of two transformers.

use super::keys::{COMFY, KOHYA, NETWORK};
use super::names::{PREFIX, SECOND};
use crate::model::COMFY_PREFIX;
use crate::train::hf::{TensorFile, TensorFileError, TensorInfo};
use std::collections::BTreeMap;
use std::path::Path;
use tch::Tensor;

/// Beginnings of names of a single transformer's tensors, the longest first of those that begin alike.
const BEGINNINGS: [&str; 5] = ["base_model.model.transformer.", PREFIX, COMFY_PREFIX, COMFY, NETWORK];

/// Tensors by name; those of a file for low noise have the names that one file for both would have.
pub(super) struct Files {
    files: Vec<TensorFile>,
    tensors: BTreeMap<String, Held>,
    /// There is one file, that for low noise.
    is_second: bool,
}

struct Held {
    file: usize,
    /// The tensor's name in its file.
    name: String,
    info: TensorInfo,
}

impl Files {
    /// Holds the tensors of one file.
    pub fn one(file: TensorFile) -> Self {
        let held = |(name, info): (&String, &TensorInfo)| {
            (name.clone(), Held { file: 0, name: name.clone(), info: info.clone() })
        };
        let tensors = file.tensors().iter().map(held).collect();
        Self { files: vec![file], tensors, is_second: false }
    }

    /// Holds the tensors of the file of the second transformer alone; one of both has names for each.
    pub fn second(file: TensorFile) -> Self {
        let of_both = [SECOND.to_owned(), format!("{KOHYA}{}", SECOND.replace('.', "_"))];
        if file.tensors().keys().any(|name| of_both.iter().any(|begin| name.starts_with(begin))) {
            return Self::one(file);
        }
        let held = |(name, info): (&String, &TensorInfo)| {
            (of_second(name), Held { file: 0, name: name.clone(), info: info.clone() })
        };
        let tensors = file.tensors().iter().map(held).collect();
        Self { files: vec![file], tensors, is_second: true }
    }

    /// Holds the tensors of two transformers' files.
    pub fn two(high: TensorFile, low: TensorFile) -> Self {
        let mut both = Self::one(high);
        for (name, info) in low.tensors() {
            both.tensors.insert(of_second(name), Held { file: 1, name: name.clone(), info: info.clone() });
        }
        both.files.push(low);
        both
    }

    /// Returns all names, in order.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.tensors.keys()
    }

    /// Returns the number of tensors.
    pub fn num_tensors(&self) -> usize {
        self.tensors.len()
    }

    /// Returns a name as it is here, and what it names.
    pub fn info(&self, name: &str) -> Option<(&str, &TensorInfo)> {
        self.tensors.get_key_value(name).map(|(name, held)| (name.as_str(), &held.info))
    }

    /// Reads a tensor in the shape `[…]` and type of its file; `None`: there is none of this name.
    ///
    /// # Errors
    /// Fails as [`TensorFile::read`] does.
    pub fn read(&self, name: &str) -> Result<Option<Tensor>, TensorFileError> {
        match self.tensors.get(name) {
            Some(held) => self.files[held.file].read(&held.name),
            None => Ok(None),
        }
    }

    /// Returns the path of the first file.
    pub fn path(&self) -> &Path {
        self.files[0].path()
    }

    /// Returns the note of each file under this key; before that of the second transformer's file an empty one for the first.
    pub fn notes(&self, key: &str) -> Vec<Option<&str>> {
        let notes = self.files.iter().map(|file| file.note(key));
        match self.is_second {
            true => notes.flat_map(|note| [note.map(|_| "{}"), note]).collect(),
            false => notes.collect(),
        }
    }
}

/// Returns the name of a tensor of the second transformer in a file of both.
fn of_second(name: &str) -> String {
    // Diffusers' file of this transformer alone.
    if name.starts_with(SECOND) {
        return name.to_owned();
    }
    if let Some(rest) = name.strip_prefix(KOHYA) {
        return format!("{KOHYA}{}{rest}", SECOND.replace('.', "_"));
    }
    let inner = BEGINNINGS.iter().find_map(|begin| name.strip_prefix(begin)).unwrap_or(name);
    format!("{SECOND}{inner}")
}
