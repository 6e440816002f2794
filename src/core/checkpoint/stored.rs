//! Checkpoints in an object store: `URL/step-00000200/FILE`, of which `MANIFEST.json` is written last and removed first, so that
//! a folder with it is whole.

use super::error::CheckpointError;
use super::manifest::Manifest;
use super::names::MANIFEST;
use crate::files::{self, LeftAside};
use crate::store::{self, StoreError};
use crate::text::hex;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

/// The reason why a checkpoint did not get into a store, or out of it.
#[derive(Debug, thiserror::Error)]
pub enum StoredError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("{url} has no checkpoint")]
    None { url: String },
}

/// The folder of a run's checkpoints in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCheckpoints {
    /// The URL without a slash at the end.
    url: String,
}

impl StoredCheckpoints {
    /// Names the folder of an object store that checkpoints lie in; nothing is asked of it yet.
    pub fn new(url: &str) -> Self {
        Self { url: url.trim_end_matches('/').to_owned() }
    }

    /// Returns the URL of the checkpoint of so many steps.
    pub fn url(&self, num_steps: u64) -> String {
        format!("{}/{}", self.url, files::step_name(num_steps))
    }

    /// Steps of which the store has a folder, whole or not, in order.
    ///
    /// # Errors
    /// The bucket is not there, or cannot be listed.
    pub fn steps(&self) -> Result<Vec<u64>, StoreError> {
        let folders = store::list_folders(&self.url)?;
        let mut steps: Vec<u64> = folders.iter().filter_map(|name| files::steps_of(name)).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// Returns the manifest's text, where the checkpoint is whole.
    ///
    /// # Errors
    /// The store cannot be reached.
    pub fn manifest(&self, num_steps: u64) -> Result<Option<Vec<u8>>, StoreError> {
        store::get(&format!("{}/{MANIFEST}", self.url(num_steps)), files::MAX_TEXT_BYTES)
    }

    /// Steps of the newest checkpoint that is whole.
    ///
    /// # Errors
    /// The bucket is not there or cannot be listed, or a manifest cannot be read.
    pub fn newest(&self) -> Result<Option<u64>, StoreError> {
        self.newest_of(|_, _| true)
    }

    /// Works like [`StoredCheckpoints::newest`], among those of which `is_wanted`, by steps and the manifest's text.
    ///
    /// # Errors
    /// Fails as [`StoredCheckpoints::newest`] does.
    pub fn newest_of(&self, is_wanted: impl Fn(u64, &[u8]) -> bool) -> Result<Option<u64>, StoreError> {
        for num_steps in self.steps()?.into_iter().rev() {
            if self.manifest(num_steps)?.is_some_and(|text| is_wanted(num_steps, &text)) {
                return Ok(Some(num_steps));
            }
        }
        Ok(None)
    }

    /// Steps of the newest checkpoint that is whole, but for those that the run there has left aside when it was resumed from an earlier
    /// one.
    ///
    /// # Errors
    /// Fails as [`StoredCheckpoints::newest`] does, or where the record of what is left aside is damaged.
    pub fn newest_kept(&self) -> Result<Option<u64>, StoredError> {
        let left = self.left_aside()?.map(|text| LeftAside::parse(&text)).transpose();
        let left = left.map_err(CheckpointError::read(Path::new(&self.url)))?;
        let is_left =
            |num_steps: u64, text: &[u8]| left.as_ref().is_some_and(|left| left.has_manifest(num_steps, text));
        Ok(self.newest_of(|num_steps, text| !is_left(num_steps, text))?)
    }

    /// Copies the checkpoint in `dir` into the store. Every file is compared with the manifest's SHA-256 while it is sent. `sent`
    /// has the files that an earlier attempt of this call has sent, and gets those of this one.
    ///
    /// # Errors
    /// The store does not take a file, or one cannot be read or is not what was written. The checkpoint is not whole then.
    pub fn send(&self, dir: &Path, sent: &mut BTreeSet<String>) -> Result<u64, StoredError> {
        let path = dir.join(MANIFEST);
        let text = files::read(&path, files::MAX_TEXT_BYTES).map_err(CheckpointError::read(&path))?;
        let manifest = Manifest::parse(&text, dir)?;
        let folder = self.url(manifest.num_steps);
        if sent.is_empty() {
            // What an earlier run, or a part of one, has left under this name.
            self.remove(manifest.num_steps)?;
        }
        for (name, entry) in &manifest.files {
            if sent.contains(name) {
                continue;
            }
            let path = dir.join(name);
            let file = files::open(&path).map_err(CheckpointError::read(&path))?;
            let mut reader = Hashed { inner: file, hash: Sha256::new(), left: entry.bytes, expected: &entry.sha256 };
            store::send(&format!("{folder}/{name}"), &mut reader, entry.bytes)?;
            sent.insert(name.clone());
        }
        store::put(&format!("{folder}/{MANIFEST}"), text)?;
        Ok(manifest.num_steps)
    }

    /// Fetches the checkpoint of so many steps into `to`, which is made, and compares every file with its SHA-256 as it comes.
    ///
    /// # Errors
    /// It is not there or not whole, a file is damaged, or `to` cannot be written.
    pub fn fetch(&self, num_steps: u64, to: &Path) -> Result<(), StoredError> {
        let url = self.url(num_steps);
        let text = self.manifest(num_steps)?.ok_or_else(|| StoredError::None { url: url.clone() })?;
        fetch_files(&url, &text, to, |_| true)?;
        let path = to.join(MANIFEST);
        fs::write(&path, text).and_then(|()| File::open(&path)?.sync_all()).map_err(CheckpointError::write(&path))?;
        Ok(())
    }

    /// Removes all checkpoints but the `keep_last` newest that are whole, `newest`, and `best`; and what is left of those that
    /// never became whole. Those that the run has left aside, by steps and the manifest's text, count for none, and stay until it is
    /// past them.
    ///
    /// # Errors
    /// The store cannot be reached; what is left is removed the next time.
    pub fn prune(
        &self,
        newest: u64,
        best: Option<u64>,
        keep_last: usize,
        is_aside: impl Fn(u64, &[u8]) -> bool,
    ) -> Result<(), StoreError> {
        let mut num_kept = 0;
        for num_steps in self.steps()?.into_iter().rev() {
            let is_kept = num_steps == newest || Some(num_steps) == best;
            let text = if num_steps == newest { None } else { self.manifest(num_steps)? };
            let is_whole = num_steps == newest || text.is_some();
            let is_aside = text.is_some_and(|text| is_aside(num_steps, &text));
            num_kept += usize::from(is_whole && !is_aside);
            let is_old = if is_aside { num_steps < newest } else { num_kept > keep_last };
            if !is_whole || (is_old && !is_kept) {
                self.remove(num_steps)?;
            }
        }
        Ok(())
    }

    /// Returns the text of the record of what the run has left aside; `None`: there is none.
    ///
    /// # Errors
    /// The store cannot be reached.
    pub fn left_aside(&self) -> Result<Option<Vec<u8>>, StoreError> {
        store::get(&format!("{}/{}", self.url, files::LEFT_ASIDE), files::MAX_TEXT_BYTES)
    }

    /// Writes that record, or removes it, unless it is the same already.
    ///
    /// # Errors
    /// The store cannot be reached.
    pub fn set_left_aside(&self, record: Option<Vec<u8>>) -> Result<(), StoreError> {
        let url = format!("{}/{}", self.url, files::LEFT_ASIDE);
        let is_same = self.left_aside()? == record;
        match record {
            _ if is_same => Ok(()),
            Some(text) => store::put(&url, text),
            None => store::delete(&url),
        }
    }

    /// Removes all but the checkpoints of so many steps.
    ///
    /// # Errors
    /// A checkpoint cannot be listed or removed.
    pub fn remove_others(&self, own: &BTreeSet<u64>) -> Result<(), StoreError> {
        self.steps()?.into_iter().filter(|num_steps| !own.contains(num_steps)).try_for_each(|other| self.remove(other))
    }

    /// Removes a checkpoint, its manifest first.
    fn remove(&self, num_steps: u64) -> Result<(), StoreError> {
        let folder = self.url(num_steps);
        let mut names: Vec<String> = store::list(&folder)?.into_iter().map(|object| object.name).collect();
        names.sort_by_key(|name| name != MANIFEST);
        names.iter().try_for_each(|name| store::delete(&format!("{folder}/{name}")))
    }
}

/// Fetches the files that the text of a manifest lists, of which `is_wanted`, from a folder of a store, without the manifest.
///
/// # Errors
/// The manifest or a file is damaged, or `to` cannot be written.
pub fn fetch_files(url: &str, manifest: &[u8], to: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<(), StoredError> {
    let parsed = Manifest::parse(manifest, Path::new(url))?;
    fs::create_dir_all(to).map_err(CheckpointError::write(to))?;
    for (name, entry) in parsed.files.iter().filter(|(name, _)| is_wanted(name)) {
        let path = to.join(name);
        let found = fetch_file(&format!("{url}/{name}"), entry.bytes, &path)?;
        if found != entry.sha256 {
            return Err(CheckpointError::changed(Path::new(url), name).into());
        }
    }
    Ok(())
}

/// Fetches an object of so many bytes into a file that is on the disk then; returns its SHA-256 in lower-case hexadecimal.
///
/// # Errors
/// It cannot be fetched or written.
pub fn fetch_file(url: &str, bytes: u64, to: &Path) -> Result<String, StoredError> {
    let folder = to.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(CheckpointError::write(folder))?;
    let (mut file, mut hash) = (File::create(to).map_err(CheckpointError::write(to))?, Sha256::new());
    store::fetch(url, bytes, &mut |part| {
        hash.update(part);
        file.write_all(part)
    })?;
    file.sync_all().map_err(CheckpointError::write(to))?;
    Ok(hex(hash.finalize()))
}

/// Reads a file whose last bytes are only there if all of it is what is expected.
struct Hashed<'a> {
    inner: File,
    hash: Sha256,
    left: u64,
    expected: &'a str,
}

impl Read for Hashed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let want = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let got = self.inner.read(&mut buffer[..want])?;
        self.hash.update(&buffer[..got]);
        self.left -= got as u64;
        if got > 0 && self.left == 0 && hex(self.hash.clone().finalize()) != self.expected {
            return Err(io::Error::other("the file is corrupt: its SHA-256 differs from that in the manifest"));
        }
        Ok(got)
    }
}

#[cfg(all(test, feature = "cloud"))]
#[path = "stored_tests.rs"]
mod tests;
