//! Tensors into safetensors files: streamed, hashed on the way, durable at the end, in shards named as transformers does;
//! or the same files kept in memory.

use super::checkpoint::num_bytes;
use super::dtype::Dtype;
use super::error::WeightsError;
use super::same_files::{SameFiles, create};
use super::shards::Shards;
use super::snapshot::{Kept, Snapshot};
use crate::native::bytes;
use crate::params::{ParamId, ParamSpec, ParamStore, Role, StoredTensor};
use crate::train::peft::{has_adapter, merged};
use loongforge_core::message::SavedFile;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tch::{Device, Kind, Tensor};

/// Says where files go.
#[derive(Clone, Copy)]
pub enum Target<'a> {
    /// The file goes into a folder at once.
    Folder(&'a Path),
    /// Into memory; who has the snapshot writes them. A file has no hash until then.
    Memory(&'a RefCell<Snapshot>),
}

impl<'a> From<&'a Path> for Target<'a> {
    fn from(folder: &'a Path) -> Self {
        Self::Folder(folder)
    }
}

/// Bytes of tensors that never change from which on these have files of their own: they are written once a run.
const APART: u64 = 64 << 20;

/// A tensor that is to go into some file of a pool.
pub(super) struct Sized<'a> {
    pub name: &'a str,
    pub size: u64,
    /// True if the tensor is the same in every checkpoint of the run.
    pub is_same: bool,
}

/// Returns the tensors of each file of a pool, by their numbers, in the order of names, and whether all of them never change.
pub(super) fn deal_to(tensors: &[Sized<'_>], max_size: u64, apart: u64) -> Vec<(Vec<usize>, bool)> {
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|&index| tensors[index].name);
    let (same, changing): (Vec<usize>, Vec<usize>) = order.iter().partition(|&&index| tensors[index].is_same);
    let bytes: u64 = same.iter().map(|&index| tensors[index].size).sum();
    let groups = if bytes >= apart { vec![same, changing] } else { vec![order] };
    let files = groups.iter().flat_map(|group| {
        let sizes: Vec<u64> = group.iter().map(|&index| tensors[index].size).collect();
        deal(&sizes, max_size).into_iter().map(|range| group[range].to_vec())
    });
    files
        .map(|file| (file.iter().all(|&index| tensors[index].is_same), file))
        .map(|(same, file)| (file, same))
        .collect()
}

/// Works like [`deal_to`] for the files that `shards` foresees: what was not foreseen goes into the last.
pub(super) fn deal_among(tensors: &[Sized<'_>], shards: &Shards) -> Vec<(Vec<usize>, bool)> {
    let mut files = deal_to(tensors, shards.max_size, APART);
    let beyond = files.split_off(files.len().min(shards.count.max(1)));
    if let Some((last, is_same)) = files.last_mut() {
        for (more, same) in beyond {
            last.extend(more);
            *is_same &= same;
        }
    }
    files
}

/// Returns the sizes dealt in order to files of at most `max_size`; a larger one is alone. No file for none.
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

/// Returns the number of files that [`save_weights`] will make of parameters with these pieces.
pub fn num_shards<'a>(specs: impl Iterator<Item = &'a ParamSpec> + Clone, kind: Kind, max_size: u64) -> usize {
    let has_adapter = specs.clone().any(|spec| spec.adapter.is_some());
    let sized = specs.flat_map(|spec| spec.pieces.iter().map(move |piece| sized(spec, piece, kind, has_adapter)));
    deal_to(&sized.collect::<Vec<_>>(), max_size, APART).len()
}

/// Returns a piece of a parameter of a pool of `kind`. Adapters change what they are added to.
fn sized<'a>(spec: &ParamSpec, piece: &'a StoredTensor, kind: Kind, has_adapter: bool) -> Sized<'a> {
    let dtype = dtype_of(spec, piece, kind);
    let is_same = spec.role == Role::Frozen && !has_adapter;
    Sized { name: &piece.name, size: num_bytes(&piece.shape, dtype), is_same }
}

/// Returns the type in files of a piece of a parameter of a pool of `kind`.
pub(super) fn dtype_of(spec: &ParamSpec, piece: &StoredTensor, kind: Kind) -> Dtype {
    let kind = match spec.role {
        _ if piece.is_integer => Kind::Int64,
        Role::Buffer => Kind::Float,
        _ => kind,
    };
    Dtype::of(kind).expect("a parameter's kind is a file's type")
}

/// Returns the tensor of the file that a piece of the parameter `value` is.
fn in_file(piece: &StoredTensor, value: &Tensor) -> Tensor {
    let view = piece.view(value);
    if piece.is_integer { view.to_kind(Kind::Int64) } else { view }
}

/// Writes every parameter, in its own precision and the checkpoint's pieces, as the pool's files. A parameter that has an adapter is
/// written with the adapter added.
///
/// # Errors
/// A file cannot be written.
pub fn save_weights<'a>(
    params: &ParamStore,
    to: impl Into<Target<'a>>,
    shards: &Shards,
) -> Result<Vec<SavedFile>, WeightsError> {
    let to = to.into();
    let has = |id: &ParamId| params.spec(*id).pieces.first().is_none_or(|piece| shards.of.has(&piece.name));
    let own = params.ids().filter(|id| !params.spec(*id).is_copy && has(id));
    let pieces: Vec<(ParamId, &StoredTensor)> =
        own.flat_map(|id| params.spec(id).pieces.iter().map(move |piece| (id, piece))).collect();
    let files = deal_among(&sized_of(params, &pieces), shards);
    // What is gathered from ranks, or made of float8, is here for a moment only.
    let lasts = params.sharding().is_none() && params.frozen_units().is_empty();
    let mut saved = Vec::new();
    for (index, (file, is_same)) in files.into_iter().enumerate() {
        let tensor = |index: usize| {
            let (id, piece) = pieces[index];
            (shards.of.in_file(&piece.name).to_owned(), in_file(piece, &merged(params, id)))
        };
        let (tensors, name): (Vec<_>, _) = (file.into_iter().map(tensor).collect(), shards.name(index));
        match to {
            Target::Memory(snapshot) if is_same && lasts => write_later(&mut snapshot.borrow_mut(), name, tensors),
            // transformers refuses a file without this note.
            _ => saved.push(write_tensor_file(&tensors, &[("format", "pt")], to, &name)?),
        }
    }
    Ok(saved)
}

/// Has a file written of tensors that never change, unless it can be linked: nothing of them is copied.
fn write_later(snapshot: &mut Snapshot, name: String, tensors: Vec<(String, Tensor)>) {
    let same = snapshot.same().clone();
    let write = move |folder: &Path, stop: &AtomicBool| {
        let write = || match stop.load(Relaxed) {
            true => Err(WeightsError::Write { path: folder.join(&name), source: io::Error::other("the run ends") }),
            false => write_tensor_file(&tensors, &[("format", "pt")], folder, &name),
        };
        Ok(vec![same.put(folder, &name, write)?])
    };
    snapshot.also_write(Box::new(write));
}

/// Returns the pieces of a store's parameters, of a size each.
pub(super) fn sized_of<'a>(params: &ParamStore, pieces: &[(ParamId, &'a StoredTensor)]) -> Vec<Sized<'a>> {
    let has_adapter = has_adapter(params);
    let sized = |(id, piece): &(ParamId, &'a StoredTensor)| {
        sized(params.spec(*id), piece, params.leaf(*id).kind(), has_adapter)
    };
    pieces.iter().map(sized).collect()
}

/// Works like [`save_weights`] for frozen parameters of `kind` that no store holds: `value` gives each in turn, in the shape `[…]` of its
/// spec, unless the files are the `same` as before.
///
/// # Errors
/// Fails as `value` does, and where a file cannot be written.
pub fn save_specs(
    specs: &[ParamSpec],
    kind: Kind,
    (folder, same): (&Path, &SameFiles),
    shards: &Shards,
    mut value: impl FnMut(&ParamSpec) -> Result<Tensor, WeightsError>,
) -> Result<Vec<SavedFile>, WeightsError> {
    let has = |spec: &&ParamSpec| spec.pieces.first().is_none_or(|piece| shards.of.has(&piece.name));
    let own = specs.iter().filter(|spec| !spec.is_copy).filter(has);
    let pieces: Vec<(&ParamSpec, &StoredTensor)> =
        own.flat_map(|spec| spec.pieces.iter().map(move |piece| (spec, piece))).collect();
    let entry = |(spec, piece): &(&ParamSpec, &StoredTensor)| {
        let dtype = dtype_of(spec, piece, kind);
        Entry { name: shards.of.in_file(&piece.name).to_owned(), dtype, shape: piece.shape.clone() }
    };
    let sizes: Vec<Sized<'_>> = pieces.iter().map(|(spec, piece)| sized(spec, piece, kind, false)).collect();
    let mut saved = Vec::new();
    for (index, (file, _)) in deal_among(&sizes, shards).into_iter().enumerate() {
        let entries: Vec<Entry> = file.iter().map(|&index| entry(&pieces[index])).collect();
        let name = shards.name(index);
        let write = || {
            let mut writer = Writer::create(&entries, &[("format", "pt")], folder.into(), &name)?;
            for index in order(&entries) {
                let (spec, piece) = pieces[file[index]];
                writer.write_tensor(&in_file(piece, &value(spec)?))?;
            }
            writer.finish()
        };
        saved.push(same.put(folder, &name, write)?);
    }
    Ok(saved)
}

/// Writes the file `name` with tensors of any shapes, makes it durable and hashes it. `notes` become the header's `__metadata__`.
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

/// Returns the order of tensors in a file: wide types first, so that every tensor is aligned; then by name.
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
    /// Begins a file with the header of all entries and notes.
    ///
    /// # Errors
    /// The file cannot be made.
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

    /// Returns the indices of the entries in the order in which their bytes are to be written.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// Writes the next tensor. It may have any shape.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_tensor(&mut self, tensor: &Tensor) -> Result<(), WeightsError> {
        if let Sink::Memory { snapshot, kept } = &mut self.sink {
            snapshot.borrow_mut().put(kept, tensor);
            self.written += (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64;
            return Ok(());
        }
        // One tensor at a time leaves the device or becomes contiguous.
        self.write(bytes(&tensor.detach().to_device(Device::Cpu).contiguous()))
    }

    /// Writes the next bytes.
    ///
    /// # Errors
    /// The file cannot be written.
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
    ///
    /// # Errors
    /// The file cannot be written, or not made durable.
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
                let file = create(&path).map_err(|source| WeightsError::Write { path: path.clone(), source })?;
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
    fn large_tensors_that_never_change_have_files_of_their_own() {
        let tensors = [("c", 5, true), ("a", 3, false), ("b", 6, true), ("d", 2, false)];
        let tensors = tensors.map(|(name, size, is_same)| Sized { name, size, is_same });
        assert_eq!(deal_to(&tensors, 10, 12), [(vec![1, 2], false), (vec![0, 3], false)]);
        assert_eq!(deal_to(&tensors, 10, 11), [(vec![2], true), (vec![0], true), (vec![1, 3], false)]);
        assert_eq!(deal_to(&tensors[..1], 10, 100), [(vec![0], true)]);
    }

    #[test]
    fn sizes_are_dealt_in_order() {
        assert_eq!(deal(&[], 10), Vec::<std::ops::Range<usize>>::new());
        assert_eq!(deal(&[4, 6, 1, 20, 3, 7], 10), [0..2, 2..3, 3..4, 4..6]);
        assert_eq!(deal(&[u64::MAX, u64::MAX], 10), [0..1, 1..2]);
    }
}
