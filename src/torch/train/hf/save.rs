//! Tensors into safetensors files: streamed, hashed on the way, durable at the end, in shards named as transformers does;
//! or the same files kept in memory.

use super::checkpoint::num_bytes;
use super::dtype::Dtype;
use super::error::WeightsError;
use super::shards::Shards;
use super::snapshot::{Kept, Snapshot};
use crate::native::bytes;
use crate::params::{ParamId, ParamStore, StoredTensor};
use crate::train::peft::merged;
use loongforge_core::message::SavedFile;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tch::{Device, Kind, Tensor};

/// Says where files go.
#[derive(Clone, Copy)]
pub enum Target<'a> {
    /// At once into a folder.
    Folder(&'a Path),
    /// Into memory; who has the snapshot writes them. A file has no hash until then.
    Memory(&'a RefCell<Snapshot>),
}

impl<'a> From<&'a Path> for Target<'a> {
    fn from(folder: &'a Path) -> Self {
        Self::Folder(folder)
    }
}

/// Sizes dealt in order to files of at most `max_size`; a larger one is alone. No file for none.
pub(super) fn deal(sizes: &[u64], max_size: u64) -> Vec<std::ops::Range<usize>> {
    let (mut files, mut start, mut sum) = (Vec::new(), 0, 0u64);
    for (index, &size) in sizes.iter().enumerate() {
        if index > start && sum.saturating_add(size) > max_size {
            files.push(start..index);
            (start, sum) = (index, 0);
        }
        sum = sum.saturating_add(size);
    }
    if start < sizes.len() {
        files.push(start..sizes.len());
    }
    files
}

/// The files that [`save_weights`] will make of parameters with these pieces.
pub fn num_shards<'a>(pieces: impl Iterator<Item = (&'a StoredTensor, Kind)>, max_size: u64) -> usize {
    let dtype = |kind| Dtype::of(kind).expect("a parameter's kind is a file's type");
    let mut sizes: Vec<(&str, u64)> =
        pieces.map(|(piece, kind)| (piece.name.as_str(), num_bytes(&piece.shape, dtype(kind)))).collect();
    sizes.sort_unstable();
    deal(&sizes.into_iter().map(|(_, size)| size).collect::<Vec<_>>(), max_size).len()
}

/// Writes every parameter, in its own precision and the checkpoint's pieces, as the pool's files. What has an
/// adapter is written with it added.
///
/// # Errors
/// A file cannot be written.
pub fn save_weights<'a>(
    params: &ParamStore,
    to: impl Into<Target<'a>>,
    shards: &Shards,
) -> Result<Vec<SavedFile>, WeightsError> {
    let to = to.into();
    let pieces = |id| {
        let value = merged(params, id);
        params.spec(id).pieces.iter().map(move |piece| (shards.of.in_file(&piece.name).to_owned(), piece.view(&value)))
    };
    let has = |id: &ParamId| params.spec(*id).pieces.first().is_none_or(|piece| shards.of.has(&piece.name));
    let own = params.ids().filter(|id| !params.spec(*id).is_copy && has(id));
    let mut tensors: Vec<(String, Tensor)> = own.flat_map(pieces).collect();
    // By name: whoever plans the files knows specs, not a store's order.
    tensors.sort_by(|(left, _), (right, _)| left.cmp(right));
    let size = |tensor: &Tensor| (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64;
    let sizes: Vec<u64> = tensors.iter().map(|(_, tensor)| size(tensor)).collect();
    let mut files = deal(&sizes, shards.max_size);
    // Other files' names are fixed: what was not foreseen goes into the last.
    files.truncate(shards.count.max(1));
    if let Some(last) = files.last_mut() {
        last.end = sizes.len();
    }
    files
        .into_iter()
        .enumerate()
        .map(|(index, range)| {
            // transformers refuses a file without this note.
            write_tensor_file(&tensors[range], &[("format", "pt")], to, &shards.name(index))
        })
        .collect()
}

/// Writes the file `name`, makes it durable and hashes it. `notes` become the header's `__metadata__`.
///
/// # Errors
/// The file cannot be written.
pub fn write_tensor_file<'a>(
    tensors: &[(String, Tensor)],
    notes: &[(&str, &str)],
    to: impl Into<Target<'a>>,
    name: &str,
) -> Result<SavedFile, WeightsError> {
    let entry = |(name, tensor): &(String, Tensor)| Entry {
        name: name.clone(),
        dtype: Dtype::of(tensor.kind()).unwrap_or_else(|| panic!("a tensor of kind {:?}", tensor.kind())),
        shape: tensor.size(),
    };
    let entries: Vec<Entry> = tensors.iter().map(entry).collect();
    let mut writer = Writer::create(&entries, notes, to.into(), name)?;
    for index in order(&entries) {
        writer.write_tensor(&tensors[index].1)?;
    }
    writer.finish()
}

/// The order of tensors in a file: wide types first, so that every tensor is aligned; then by name.
pub(crate) fn order(entries: &[Entry]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by(|&left, &right| {
        let key = |entry: &'_ Entry| std::cmp::Reverse(entry.dtype.bits());
        let (left, right) = (&entries[left], &entries[right]);
        key(left).cmp(&key(right)).then_with(|| left.name.cmp(&right.name))
    });
    order
}

/// A tensor that a file will hold.
pub(crate) struct Entry {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<i64>,
}

/// A file of which the header is written; the tensors' bytes come in [`Writer::order`].
pub(crate) struct Writer<'a> {
    sink: Sink<'a>,
    order: Vec<usize>,
    written: u64,
    end: u64,
    saved: SavedFile,
}

enum Sink<'a> {
    File { path: PathBuf, file: File, hash: Sha256 },
    Memory { snapshot: &'a RefCell<Snapshot>, kept: Kept },
}

impl<'a> Writer<'a> {
    pub fn create(entries: &[Entry], notes: &[(&str, &str)], to: Target<'a>, name: &str) -> Result<Self, WeightsError> {
        let order = order(entries);
        let (mut header, mut end) = (Map::new(), 0);
        if !notes.is_empty() {
            let notes = notes.iter().map(|&(key, value)| (key.to_owned(), json!(value))).collect();
            header.insert("__metadata__".to_owned(), Value::Object(notes));
        }
        for &index in &order {
            let Entry { name, dtype, shape } = &entries[index];
            let start = end;
            end += num_bytes(shape, *dtype);
            let entry = json!({ "dtype": dtype.name(), "shape": shape, "data_offsets": [start, end] });
            assert!(header.insert(name.clone(), entry).is_none(), "{name} is written twice");
        }
        let mut text = serde_json::to_vec(&header).expect("JSON values can be written");
        text.resize(text.len().next_multiple_of(8), b' ');
        let tensors = entries.iter().map(|entry| entry.name.clone()).collect();
        let saved = SavedFile { name: name.to_owned(), bytes: 0, sha256: String::new(), tensors };
        let end = end + 8 + text.len() as u64;
        let sink = Sink::create(to, &saved, end)?;
        let mut writer = Self { sink, order, written: 0, end, saved };
        writer.write(&(text.len() as u64).to_le_bytes())?;
        writer.write(&text)?;
        Ok(writer)
    }

    /// Indices of the entries in the order in which their bytes are to be written.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    pub fn write_tensor(&mut self, tensor: &Tensor) -> Result<(), WeightsError> {
        if let Sink::Memory { snapshot, kept } = &mut self.sink {
            snapshot.borrow_mut().put(kept, tensor);
            self.written += (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64;
            return Ok(());
        }
        // One tensor at a time leaves the device or becomes contiguous.
        self.write(bytes(&tensor.detach().to_device(Device::Cpu).contiguous()))
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), WeightsError> {
        self.written += bytes.len() as u64;
        match &mut self.sink {
            Sink::Memory { kept, .. } => {
                kept.write(bytes);
                Ok(())
            }
            Sink::File { path, file, hash } => {
                hash.update(bytes);
                file.write_all(bytes).map_err(|source| WeightsError::Write { path: path.clone(), source })
            }
        }
    }

    /// # Panics
    /// Not all tensors were written.
    pub fn finish(self) -> Result<SavedFile, WeightsError> {
        assert_eq!(self.written, self.end, "bytes of {}", self.saved.name);
        match self.sink {
            Sink::Memory { snapshot, kept } => Ok(snapshot.borrow_mut().keep(kept)),
            Sink::File { path, file, hash } => {
                file.sync_all().map_err(|source: io::Error| WeightsError::Write { path, source })?;
                let sha256 = loongforge_core::text::hex(hash.finalize());
                Ok(SavedFile { bytes: self.written, sha256, ..self.saved })
            }
        }
    }
}

impl<'a> Sink<'a> {
    fn create(to: Target<'a>, saved: &SavedFile, len: u64) -> Result<Self, WeightsError> {
        match to {
            Target::Folder(folder) => {
                let path = folder.join(&saved.name);
                // A network of a diffusion model has a folder of its own.
                let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
                made.map_err(|source| WeightsError::Write { path: path.clone(), source })?;
                let file = File::create(&path).map_err(|source| WeightsError::Write { path: path.clone(), source })?;
                Ok(Self::File { path, file, hash: Sha256::new() })
            }
            Target::Memory(snapshot) => {
                let kept = snapshot.borrow_mut().create(saved.clone(), len);
                Ok(Self::Memory { snapshot, kept })
            }
        }
    }
}

/// Writes the file `name` of these bytes, which is not the model's, makes it durable and hashes it.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write_plain_file(contents: &[u8], to: Target<'_>, name: &str) -> Result<SavedFile, WeightsError> {
    let saved = SavedFile { name: name.to_owned(), bytes: 0, sha256: String::new(), tensors: Vec::new() };
    let end = contents.len() as u64;
    let sink = Sink::create(to, &saved, end)?;
    let mut writer = Writer { sink, order: Vec::new(), written: 0, end, saved };
    writer.write(contents)?;
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_dealt_in_order() {
        assert_eq!(deal(&[], 10), Vec::<std::ops::Range<usize>>::new());
        assert_eq!(deal(&[4, 6, 1, 20, 3, 7], 10), [0..2, 2..3, 3..4, 4..6]);
        assert_eq!(deal(&[u64::MAX, u64::MAX], 10), [0..1, 1..2]);
    }
}
