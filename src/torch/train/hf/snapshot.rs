//! The files of a checkpoint in memory, until they are written: one copy of what is saved, whoever goes on to change it.
//!
//! Buffers come from the snapshot before, so that a run's second save and those after it pay for no fresh memory. Tensors
//! that nobody changes before the next optimizer step are copied by whoever writes, while that step is computed;
//! [`Snapshot::copy`] is to be done by then.

use super::error::WeightsError;
use super::same_files::{SameFiles, create};
use crate::native::bytes;
use loongforge_core::engine::fault;
use loongforge_core::message::{ActorId, SavedFile};
use loongforge_core::threads::try_spawn;
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tch::{Device, Tensor};

/// Bytes between two looks at whether to stop.
const CHUNK: usize = 8 << 20;

/// Writes files that are not in memory into a folder, unless it is to stop.
type WriteFiles = Box<dyn Fn(&Path, &AtomicBool) -> Result<Vec<SavedFile>, WeightsError> + Send>;

/// Files to be, and the memory that they are in.
#[derive(Default)]
pub struct Snapshot {
    files: Vec<Kept>,
    spare: VecDeque<Vec<u8>>,
    /// Addresses of the tensors that stay as they are until [`Snapshot::copy`] is done.
    lasting: Vec<Range<usize>>,
    /// Writes the files that are not in memory, when those that are were written.
    others: Vec<WriteFiles>,
    /// The files that are the same in every checkpoint.
    same: Arc<SameFiles>,
}

/// A file to be.
pub(super) struct Kept {
    saved: SavedFile,
    contents: Vec<u8>,
    /// The tensors that are copied later, and their places.
    later: Vec<(usize, Tensor)>,
    written: usize,
}

impl Snapshot {
    /// Makes an empty snapshot, which fills the buffers `spare` first. `lasting` are tensors of any shape; those on the CPU that are
    /// contiguous must stay as they are, and not be freed, until [`Snapshot::copy`] is done.
    pub fn new(spare: Vec<Vec<u8>>, lasting: &[Tensor]) -> Self {
        let on_cpu = lasting.iter().filter(|tensor| tensor.device() == Device::Cpu && tensor.is_contiguous());
        let lasting = on_cpu.map(addresses).collect();
        Self { files: Vec::new(), spare: spare.into(), lasting, others: Vec::new(), same: Arc::default() }
    }

    /// Files that do not change are linked to those of the snapshots before that were given the same.
    #[must_use]
    pub fn with_same(self, same: Arc<SameFiles>) -> Self {
        Self { same, ..self }
    }

    /// Returns the files that are the same in every checkpoint.
    pub fn same(&self) -> &Arc<SameFiles> {
        &self.same
    }

    /// Begins a file of `len` bytes, in a buffer of the snapshot before where there is one.
    pub(super) fn create(&mut self, saved: SavedFile, len: u64) -> Kept {
        let mut contents = self.spare.pop_front().unwrap_or_default();
        if contents.capacity() < len as usize {
            // Zeros of fresh pages cost nothing until they are written.
            contents = vec![0; len as usize];
        }
        contents.resize(len as usize, 0);
        Kept { saved, contents, later: Vec::new(), written: 0 }
    }

    /// Adds a tensor: copied now, or later where nobody changes it before the next optimizer step.
    pub(super) fn put(&mut self, kept: &mut Kept, tensor: &Tensor) {
        let here = tensor.detach();
        let lasts = here.device() == Device::Cpu && here.is_contiguous() && {
            let own = addresses(&here);
            self.lasting.iter().any(|range| range.start <= own.start && own.end <= range.end)
        };
        if lasts {
            let len = bytes(&here).len();
            kept.later.push((kept.written, here));
            kept.written += len;
        } else {
            kept.write(bytes(&here.to_device(Device::Cpu).contiguous()));
        }
    }

    /// Ends a file, which is written later.
    pub(super) fn keep(&mut self, kept: Kept) -> SavedFile {
        let saved = kept.saved.clone();
        self.files.push(kept);
        saved
    }

    /// Returns whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.others.is_empty()
    }

    /// Has `write` called as well when the files are written.
    pub fn also_write(&mut self, write: WriteFiles) {
        self.others.push(write);
    }

    /// Notes what the files are to others, which their writers may not know: whose tensors are in them.
    pub fn describe(&mut self, files: &[SavedFile]) {
        for kept in &mut self.files {
            if let Some(file) = files.iter().find(|file| file.name == kept.saved.name) {
                kept.saved.clone_from(file);
            }
        }
    }

    /// Copies what was left for later.
    pub fn copy(&mut self) {
        for Kept { contents, later, .. } in &mut self.files {
            for (start, tensor) in later.drain(..) {
                let from = bytes(&tensor);
                contents[start..start + from.len()].copy_from_slice(from);
            }
        }
    }

    /// Writes the files into `folder` and makes them durable; each is hashed meanwhile. Stops with an error where `stop`
    /// is set.
    ///
    /// # Errors
    /// A file cannot be written.
    ///
    /// # Panics
    /// Something is not copied.
    pub fn write(&self, folder: &Path, me: ActorId, stop: &AtomicBool) -> Result<Vec<SavedFile>, WeightsError> {
        let files = self.files.iter().map(|kept| kept.write_file(folder, me, stop));
        let mut files = files.collect::<Result<Vec<_>, _>>()?;
        for write in &self.others {
            files.extend(write(folder, stop)?);
        }
        Ok(files)
    }

    /// Returns the memory, for the next one.
    pub fn into_buffers(self) -> Vec<Vec<u8>> {
        self.files.into_iter().map(|kept| kept.contents).chain(self.spare).collect()
    }
}

impl Kept {
    /// Adds bytes behind those before. Panics where they do not fit the file.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        self.contents[self.written..self.written + bytes.len()].copy_from_slice(bytes);
        self.written += bytes.len();
    }

    fn write_file(&self, folder: &Path, me: ActorId, stop: &AtomicBool) -> Result<SavedFile, WeightsError> {
        assert!(self.later.is_empty() && self.written == self.contents.len(), "{} is whole", self.saved.name);
        let path = folder.join(&self.saved.name);
        let (sha256, written) = std::thread::scope(|scope| {
            let contents = &self.contents[..];
            let hashing = try_spawn(scope, move || hash(contents, stop));
            let written = write(&path, contents, me, stop);
            if written.is_err() {
                stop_hashing(stop);
            }
            let found = match hashing {
                Some(hashing) => hashing.join().expect("hashing does not panic"),
                None => hash(contents, stop),
            };
            (found, written)
        });
        written.map_err(|source| WeightsError::Write { path, source })?;
        Ok(SavedFile { bytes: self.contents.len() as u64, sha256, ..self.saved.clone() })
    }
}

/// A file that cannot be written needs no hash, nor do those after it.
fn stop_hashing(stop: &AtomicBool) {
    stop.store(true, Relaxed);
}

fn addresses(tensor: &Tensor) -> Range<usize> {
    let bytes = bytes(tensor).as_ptr_range();
    bytes.start as usize..bytes.end as usize
}

fn hash(contents: &[u8], stop: &AtomicBool) -> String {
    let mut hash = Sha256::new();
    for chunk in contents.chunks(CHUNK).take_while(|_| !stop.load(Relaxed)) {
        hash.update(chunk);
    }
    loongforge_core::text::hex(hash.finalize())
}

fn write(path: &Path, contents: &[u8], me: ActorId, stop: &AtomicBool) -> io::Result<()> {
    fault::io(me, "save_create")?;
    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    let mut file = create(path)?;
    reserve(&file, contents.len() as u64)?;
    for (index, chunk) in contents.chunks(CHUNK).enumerate() {
        if stop.load(Relaxed) {
            return Err(io::Error::other("the run ends"));
        }
        if index == 0 {
            // A torn file is what a crash here leaves.
            file.write_all(&chunk[..chunk.len() / 2])?;
            fault::io(me, "save_write")?;
            file.write_all(&chunk[chunk.len() / 2..])?;
        } else {
            file.write_all(chunk)?;
        }
    }
    fault::io(me, "save_sync")?;
    file.sync_all()
}

/// Takes the space first: a disk that is too full says so before the first byte. One that cannot reserve is no error.
fn reserve(file: &File, len: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;
    match fallocate(file, FallocateFlags::empty(), 0, len.max(1)) {
        Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::hf::{Target, TensorFile, write_tensor_file};
    use std::cell::RefCell;

    fn named(values: &[f32]) -> (String, Tensor) {
        ("a".to_owned(), Tensor::from_slice(values))
    }

    #[test]
    fn what_is_written_later_is_what_was_there_and_the_file_is_the_same() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let tensors = [named(&[1.0, 2.0, 3.0]), ("b".to_owned(), Tensor::from_slice(&[4i64, 5]))];
        let at_once = write_tensor_file(&tensors, &[], folder.path(), "x").unwrap();
        let mut spare = Vec::new();
        for lasting in [&tensors[..0], &tensors[..1]] {
            let lasting: Vec<Tensor> = lasting.iter().map(|(_, tensor)| tensor.shallow_clone()).collect();
            let snapshot = RefCell::new(Snapshot::new(std::mem::take(&mut spare), &lasting));
            write_tensor_file(&tensors, &[], Target::Memory(&snapshot), "x").unwrap();
            let mut snapshot = snapshot.into_inner();
            assert_eq!(snapshot.files[0].later.len(), lasting.len(), "what lasts is copied later");
            snapshot.copy();
            // From here on it may change.
            let changed = tensors[0].1.copy();
            let _ = tensors[0].1.shallow_clone().g_add_scalar_(1.0);
            let files = snapshot.write(other.path(), ActorId::foundation(0), &AtomicBool::new(false)).unwrap();
            tensors[0].1.shallow_clone().copy_(&changed);
            assert_eq!(files, std::slice::from_ref(&at_once));
            assert_eq!(std::fs::read(folder.path().join("x")).unwrap(), std::fs::read(other.path().join("x")).unwrap());
            spare = snapshot.into_buffers();
        }
        assert_eq!(spare.len(), 1, "one file, one buffer");
        assert!(TensorFile::open(&other.path().join("x")).is_ok());
    }

    #[test]
    fn a_disk_without_space_is_an_error_with_the_file() {
        let snapshot = RefCell::new(Snapshot::default());
        write_tensor_file(&[named(&[1.0; 4])], &[], Target::Memory(&snapshot), "full").unwrap();
        let mut snapshot = snapshot.into_inner();
        snapshot.copy();
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/full", folder.path().join("full")).unwrap();
        let error = snapshot.write(folder.path(), ActorId::foundation(0), &AtomicBool::new(false)).unwrap_err();
        assert!(error.to_string().contains("full") && error.to_string().contains("space"), "{error}");
        // Nobody waits for a run that ends.
        assert!(
            snapshot
                .write(tempfile::tempdir().unwrap().path(), ActorId::foundation(0), &AtomicBool::new(true))
                .is_err()
        );
    }
}
