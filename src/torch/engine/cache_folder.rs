//! Features of frozen towers in a folder that outlives the run and that runs share: what one has encoded, no other encodes
//! again.
//!
//! A tower's folder is named by all that its features depend on beside the item ([`CacheName`]). An item's name is the
//! hash of its contents. So nothing in a folder can be stale, and it does not matter who wrote it. Features lie in safetensors files,
//! `HASH.LEVEL`, each written under another name and then renamed; nobody changes one afterwards.

use super::cache_key::Key;
use super::cache_store::{CacheStore, is_file_of_features};
use crate::native::bytes;
use crate::train::hf::{self, TensorFile, TensorInfo};
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tch::{Device, Kind, Tensor};

/// Bytes of features that wait in memory before they are written: a file has about so many.
const SHARD_BYTES: usize = 64 << 20;

/// The time for which the end of a run waits for a tower's last files to be copied. An engine that has not stopped after 30 seconds is
/// given up.
const PARTING: Duration = Duration::from_secs(8);

/// The features of one tower in the folder.
pub(super) struct CacheFolder {
    dir: PathBuf,
    files: Vec<TensorFile>,
    /// Files that were looked into.
    seen: HashSet<OsString>,
    stored: HashMap<Key, Vec<Stored>>,
    /// Features that are not written yet, on the CPU.
    pending: HashMap<Key, Vec<Tensor>>,
    num_pending_bytes: usize,
    /// The store that files are copied to and fetched from.
    store: Option<CacheStore>,
    /// True if all files that were written here were sent there, or that was tried.
    is_sent: bool,
}

/// Describes where one level of an item's features lies.
struct Stored {
    file: usize,
    info: TensorInfo,
    kind: Kind,
}

impl CacheFolder {
    /// Returns the folder `tower` in `root`, which is made where it is missing, and filled from the folder `store` of an object store.
    ///
    /// # Errors
    /// It cannot be made, or a file in it is torn or cannot be read.
    pub fn open(root: &Path, tower: &str, store: Option<&str>) -> io::Result<Self> {
        let dir = root.join(tower);
        fs::create_dir_all(&dir)?;
        let mut folder = Self::empty(dir, store.map(|store| CacheStore::new(store, tower)));
        folder.renew()?;
        Ok(folder)
    }

    fn empty(dir: PathBuf, store: Option<CacheStore>) -> Self {
        Self {
            dir,
            files: Vec::new(),
            seen: HashSet::new(),
            stored: HashMap::new(),
            pending: HashMap::new(),
            num_pending_bytes: 0,
            store,
            is_sent: false,
        }
    }

    /// Returns all levels of an item's features. `None` also where the disk fails: the item is encoded again. Each level is
    /// `[features, D]`.
    pub fn get(&self, key: &Key) -> Option<Vec<Tensor>> {
        if let Some(levels) = self.pending.get(key) {
            return Some(levels.iter().map(Tensor::shallow_clone).collect());
        }
        let read = |stored: &Stored| {
            let mut content = vec![0; stored.info.len as usize];
            self.files[stored.file].read_at(&stored.info, 0, &mut content).ok()?;
            Some(Tensor::from_data_size(&content, &stored.info.shape, stored.kind))
        };
        self.stored.get(key)?.iter().map(read).collect()
    }

    /// Returns whether an item's features are here, or wait to be written.
    pub fn has(&self, key: &Key) -> bool {
        self.stored.contains_key(key) || self.pending.contains_key(key)
    }

    /// Returns the folder's path.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Keeps an item's features, to be written with others. Each level is `[features, D]`.
    ///
    /// # Errors
    /// A file cannot be written: see [`CacheFolder::flush`].
    pub fn insert(&mut self, key: Key, features: &[Tensor]) -> io::Result<()> {
        if self.has(&key) {
            return Ok(());
        }
        let own = |tensor: &Tensor| tensor.detach().to_device(Device::Cpu).contiguous().copy();
        let features: Vec<Tensor> = features.iter().map(own).collect();
        self.num_pending_bytes += features.iter().map(|level| bytes(level).len()).sum::<usize>();
        self.pending.insert(key, features);
        if self.num_pending_bytes < SHARD_BYTES { Ok(()) } else { self.flush() }
    }

    /// Writes what waits, and looks for what others have written.
    ///
    /// # Errors
    /// The folder cannot be written to. What waited is dropped: it would be encoded again.
    pub fn flush(&mut self) -> io::Result<()> {
        self.num_pending_bytes = 0;
        let pending = std::mem::take(&mut self.pending);
        if !pending.is_empty() {
            self.write(pending)?;
        }
        self.look()
    }

    /// Copies files that the object store lacks, if there is one and something was written since it was last asked, and waits until
    /// they are there.
    ///
    /// # Errors
    /// The store does not take them. The next call after something is written tries again.
    pub fn send(&mut self) -> io::Result<()> {
        let Some(store) = &mut self.store else { return Ok(()) };
        let begun = store.wait(None);
        if self.is_sent {
            return begun;
        }
        self.is_sent = true;
        store.send(&self.dir)
    }

    /// Begins to copy as [`CacheFolder::send`] does, and waits for nothing: a store that is slow or down delays no step. Files that
    /// are written while others are copied wait for a later call.
    ///
    /// # Errors
    /// The store did not take what an earlier call began to copy.
    pub fn begin_sending(&mut self) -> io::Result<()> {
        let Some(store) = &mut self.store else { return Ok(()) };
        if self.is_sent || store.is_sending() {
            return Ok(());
        }
        let begun = store.wait(None);
        store.begin(&self.dir)?;
        self.is_sent = true;
        begun
    }

    /// Copies what was not copied yet, if that takes no longer than until `deadline`: a run that ends is not held up.
    ///
    /// # Errors
    /// The store does not take it, or not in time.
    fn send_until(&mut self, deadline: Instant) -> io::Result<()> {
        let Some(store) = &mut self.store else { return Ok(()) };
        store.wait(Some(deadline))?;
        if self.is_sent {
            return Ok(());
        }
        self.is_sent = true;
        store.begin(&self.dir)?;
        store.wait(Some(deadline))
    }

    /// Returns the folder for an actor that only reads: nothing is copied to the store.
    pub fn only_read(mut self) -> Self {
        self.is_sent = true;
        self
    }

    /// Fetches what the object store has and the folder lacks, and looks for what others have written. A store that does not answer
    /// costs time alone: what is only there is encoded again.
    ///
    /// # Errors
    /// Fails as [`CacheFolder::look`] does.
    pub fn renew(&mut self) -> io::Result<()> {
        if let Some(store) = &self.store
            && let Err(error) = store.fetch(&self.dir)
        {
            tracing::warn!("features cannot be fetched from cache_store: {error}");
        }
        self.look()
    }

    fn write(&mut self, pending: HashMap<Key, Vec<Tensor>>) -> io::Result<()> {
        let named = |(key, levels): (Key, Vec<Tensor>)| {
            levels.into_iter().enumerate().map(move |(level, tensor)| (format!("{key}.{level}"), tensor))
        };
        let tensors: Vec<(String, Tensor)> = pending.into_iter().flat_map(named).collect();
        // Its name is one that no other writer has.
        let writing = tempfile::Builder::new().prefix("features-").tempdir_in(&self.dir)?;
        let name = "features.safetensors";
        hf::write_tensor_file(&tensors, &[], writing.path(), name).map_err(io::Error::other)?;
        fs::rename(writing.path().join(name), writing.path().with_added_extension("safetensors"))?;
        self.is_sent = false;
        Ok(())
    }

    /// Reads the headers of files that were not seen.
    ///
    /// # Errors
    /// A file is torn or cannot be read.
    fn look(&mut self) -> io::Result<()> {
        let mut names: Vec<OsString> =
            fs::read_dir(&self.dir)?.map(|entry| entry.map(|entry| entry.file_name())).collect::<io::Result<_>>()?;
        names.retain(|name| is_file_of_features(Path::new(name)));
        names.sort();
        for name in names {
            if self.seen.insert(name.clone()) {
                let path = self.dir.join(name);
                self.take(&path)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, path: &Path) -> io::Result<()> {
        let torn = |what: String| io::Error::new(io::ErrorKind::InvalidData, format!("{what} (delete it)"));
        let file = TensorFile::open(path).map_err(|error| torn(error.to_string()))?;
        let mut found: HashMap<Key, Vec<(usize, Stored)>> = HashMap::new();
        for (name, info) in file.tensors() {
            let named = name.split_once('.').and_then(|(key, level)| Some((Key::parse(key)?, level.parse().ok()?)));
            let (Some((key, level)), Some(kind)) = (named, info.dtype.kind()) else {
                return Err(torn(format!("{}: {name} is not a tensor of features of loongforge", path.display())));
            };
            let stored = Stored { file: self.files.len(), info: info.clone(), kind };
            found.entry(key).or_default().push((level, stored));
        }
        for (key, mut levels) in found {
            levels.sort_by_key(|(level, _)| *level);
            self.stored.entry(key).or_insert_with(|| levels.into_iter().map(|(_, stored)| stored).collect());
        }
        self.files.push(file);
        Ok(())
    }
}

/// Returns the items that a tower's folder has features of, as the headers of its files say; nothing is made or fetched.
///
/// # Errors
/// The folder or a file in it cannot be read, or a file is torn.
pub fn stored_items(dir: &Path) -> io::Result<HashSet<Key>> {
    let mut folder = CacheFolder::empty(dir.to_owned(), None);
    folder.look()?;
    Ok(std::mem::take(&mut folder.stored).into_keys().collect())
}

impl Drop for CacheFolder {
    /// Writes what waits, and copies it to the store; where that fails it is encoded again by who needs it.
    fn drop(&mut self) {
        let _ = self.flush();
        if let Err(error) = self.send_until(Instant::now() + PARTING) {
            tracing::warn!("features are not copied to cache_store: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::message::{Grid, Tower};

    fn key(first: f32) -> Key {
        Key::of(Tower::Vision, Grid { t: 1, h: 1, w: 1 }, &Tensor::from_slice(&[first]).view([1, 1]))
    }

    #[test]
    fn what_one_has_written_another_reads_bit_for_bit() {
        let root = tempfile::tempdir().unwrap();
        let level = Tensor::from_slice(&[1.0_f32, -2.5, 3.0, f32::MIN_POSITIVE]).view([2, 2]).tr();
        let half = Tensor::from_slice(&[0.5_f32, 7.0]).to_kind(Kind::BFloat16);
        let mut reader = CacheFolder::open(root.path(), "vision-a", None).unwrap();
        let mut writer = CacheFolder::open(root.path(), "vision-a", None).unwrap();
        writer.insert(key(1.0), &[level.shallow_clone(), half.shallow_clone()]).unwrap();
        assert!(writer.get(&key(1.0)).is_some() && reader.get(&key(1.0)).is_none());
        drop(writer);
        reader.insert(key(2.0), &[half.shallow_clone()]).unwrap();
        reader.flush().unwrap();
        for folder in [&reader, &CacheFolder::open(root.path(), "vision-a", None).unwrap()] {
            let kept = folder.get(&key(1.0)).unwrap();
            assert!(kept[0].equal(&level) && kept[1].equal(&half));
            assert_eq!((kept.len(), kept[1].kind()), (2, Kind::BFloat16));
            assert!(folder.get(&key(2.0)).unwrap()[0].equal(&half) && folder.get(&key(3.0)).is_none());
        }
        assert_eq!(stored_items(&root.path().join("vision-a")).unwrap(), HashSet::from([key(1.0), key(2.0)]));
        // A tower with other weights.
        assert!(CacheFolder::open(root.path(), "vision-b", None).unwrap().get(&key(1.0)).is_none());
        assert_eq!(fs::read_dir(root.path().join("vision-a")).unwrap().count(), 2, "nothing is left behind");
    }

    /// Two machines with a folder each, and a store between them.
    #[test]
    fn folders_meet_in_an_object_store() {
        let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let open = |at: usize| CacheFolder::open(dirs[at].path(), "vision-a", Some("memory:///features/")).unwrap();
        let features = |first: f32| [Tensor::from_slice(&[first, -2.5]), Tensor::from_slice(&[0.25_f32])];
        let (mut first, mut second) = (open(0), open(1));
        first.insert(key(1.0), &features(1.0)).unwrap();
        first.flush().unwrap();
        second.renew().unwrap();
        assert!(!second.has(&key(1.0)), "nothing was sent yet");
        first.send().unwrap();
        second.renew().unwrap();
        let kept = second.get(&key(1.0)).unwrap();
        assert!(kept.len() == 2 && kept.iter().zip(features(1.0)).all(|(found, sent)| found.equal(&sent)));
        // What is there is not sent again, and a folder that ends leaves nothing behind.
        second.insert(key(2.0), &features(2.0)).unwrap();
        drop(second);
        drop(first);
        let third = open(2);
        assert!(third.has(&key(1.0)) && third.has(&key(2.0)));
        assert_eq!(fs::read_dir(dirs[2].path().join("vision-a")).unwrap().count(), 2);
        let other = CacheFolder::open(dirs[2].path(), "vision-b", Some("memory:///features")).unwrap();
        assert!(!other.has(&key(1.0)));
    }

    #[test]
    fn files_are_copied_while_a_run_goes_on() {
        let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let open = |at: usize, tower: &str| {
            CacheFolder::open(dirs[at].path(), tower, Some("memory:///beside")).unwrap().only_read()
        };
        let mut first = open(0, "vision-a");
        for value in [1.0, 2.0, 3.0] {
            first.insert(key(value), &[Tensor::from_slice(&[value])]).unwrap();
            first.flush().unwrap();
            first.begin_sending().unwrap();
        }
        // The end waits for what was begun, and copies the rest.
        drop(first);
        let second = open(1, "vision-a");
        assert!([1.0, 2.0, 3.0].into_iter().all(|value| second.has(&key(value))));

        // What somebody else has written is not copied by one who only reads.
        let mut apart = CacheFolder::open(dirs[0].path(), "vision-b", None).unwrap();
        apart.insert(key(4.0), &[Tensor::from_slice(&[4.0_f32])]).unwrap();
        drop(apart);
        drop(open(0, "vision-b"));
        assert!(!open(1, "vision-b").has(&key(4.0)));

        // A failure is told by a later call, once.
        let mut lost = CacheFolder::open(dirs[0].path(), "vision-a", Some("nowhere:///beside")).unwrap();
        lost.begin_sending().unwrap();
        let error = lost.send().unwrap_err().to_string();
        assert!(error.contains("nowhere:///beside/vision-a"), "{error}");
        lost.send().unwrap();

        // An end that has time copies all.
        let mut late = CacheFolder::open(dirs[0].path(), "vision-b", Some("memory:///beside")).unwrap();
        late.send_until(Instant::now() + PARTING).unwrap();
        assert!(open(1, "vision-b").has(&key(4.0)));
    }

    #[test]
    fn one_process_at_a_time_copies_from_a_folder() {
        let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let open = |at: usize| CacheFolder::open(dirs[at].path(), "vision-a", Some("memory:///in-turn")).unwrap();
        let mut folder = open(0);
        folder.insert(key(1.0), &[Tensor::from_slice(&[1.0_f32])]).unwrap();
        folder.flush().unwrap();
        let other = fs::File::open(folder.path()).unwrap();
        other.lock().unwrap();
        folder.begin_sending().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(folder.store.as_ref().is_some_and(CacheStore::is_sending) && !open(1).has(&key(1.0)));
        drop(other);
        drop(folder);
        assert!(open(1).has(&key(1.0)));
    }

    #[test]
    fn torn_files_are_named() {
        let root = tempfile::tempdir().unwrap();
        let mut folder = CacheFolder::open(root.path(), "vae-a", None).unwrap();
        folder.insert(key(1.0), &[Tensor::from_slice(&[4.0_f32; 5])]).unwrap();
        folder.flush().unwrap();
        let path = fs::read_dir(root.path().join("vae-a")).unwrap().next().unwrap().unwrap().path();
        let whole = fs::read(&path).unwrap();
        for bytes in [&whole[..whole.len() - 1], &whole[..20], &[255; 64], b"{}"] {
            fs::write(&path, bytes).unwrap();
            let error = CacheFolder::open(root.path(), "vae-a", None).err().expect("it is torn").to_string();
            assert!(error.contains("delete it") && error.matches(".safetensors").count() == 1, "{error}");
        }
    }
}
