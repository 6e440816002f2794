//! Describes how many samples shards have, remembered in a file beside other caches, so that a set is counted once. A
//! count is used while the shard's size and tag are what they were; the file may be lost or broken at any time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::shard::Shard;
use crate::files;

/// Counts of smaller sets are not kept.
const MIN_BYTES: u64 = 64 << 20;

pub struct Index {
    path: Option<PathBuf>,
    shards: BTreeMap<String, Entry>,
    has_changed: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    size: u64,
    tag: String,
    /// Counts of each block by what was counted: records, or pieces of a number of bytes.
    counts: BTreeMap<String, Vec<u64>>,
}

impl Index {
    /// Opens the index in `dir`, or in the user's cache folder if the set is large.
    pub fn open(dir: Option<&Path>, shards: &[Shard]) -> Self {
        let is_large = shards.iter().map(|shard| shard.size).sum::<u64>() >= MIN_BYTES;
        let dir = dir.map(Path::to_owned).or_else(|| is_large.then(cache_dir)?);
        let names = shards.iter().fold(0, |sum, shard| crc32c::crc32c_append(sum, shard.name.as_bytes()));
        let path = dir.map(|dir| dir.join(format!("samples-{names:08x}.json")));
        let read = |path: &PathBuf| serde_json::from_slice(&files::read(path, files::MAX_TEXT_BYTES).ok()?).ok();
        let shards = path.as_ref().and_then(read).unwrap_or_default();
        Self { path, shards, has_changed: false }
    }

    /// Returns the counts of a shard; `None` where it has changed since.
    pub fn get(&self, shard: &Shard, what: &str) -> Option<&Vec<u64>> {
        let entry = self.shards.get(&shard.name).filter(|entry| entry.size == shard.size && entry.tag == shard.tag);
        entry.and_then(|entry| entry.counts.get(what))
    }

    /// Remembers the counts of a shard; `what` names the thing that was counted. Counts of the shard as it was before are forgotten.
    pub fn put(&mut self, shard: &Shard, what: &str, counts: Vec<u64>) {
        let entry = self.shards.entry(shard.name.clone()).or_insert_with(|| Entry::new(shard));
        if entry.size != shard.size || entry.tag != shard.tag {
            *entry = Entry::new(shard);
        }
        entry.counts.insert(what.to_owned(), counts);
        self.has_changed = true;
    }

    /// Writes what was learned; that it cannot be written costs time and nothing else.
    pub fn save(&self) {
        let Some(path) = self.path.as_ref().filter(|_| self.has_changed) else { return };
        let write = || -> std::io::Result<()> {
            let dir = path.parent().unwrap_or(Path::new("."));
            std::fs::create_dir_all(dir)?;
            let mut part = tempfile::NamedTempFile::new_in(dir)?;
            serde_json::to_writer(&mut part, &self.shards)?;
            part.persist(path)?;
            Ok(())
        };
        if let Err(error) = write() {
            tracing::warn!("cannot keep the counts of samples in {}: {error}", path.display());
        }
    }
}

impl Entry {
    fn new(shard: &Shard) -> Self {
        Self { size: shard.size, tag: shard.tag.clone(), counts: BTreeMap::new() }
    }
}

fn cache_dir() -> Option<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")))?;
    Some(cache.join("loongforge/index"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_used_only_for_the_file_they_are_of() {
        let folder = tempfile::tempdir().unwrap();
        let shard = |size, tag: &str| Shard { name: "a.tar".into(), size, tag: tag.into() };
        let open = || Index::open(Some(folder.path()), &[shard(0, "")]);
        let mut index = open();
        index.put(&shard(5, "x"), "records", vec![3]);
        index.save();
        assert_eq!(open().get(&shard(5, "x"), "records"), Some(&vec![3]));
        for (other, what) in [(shard(6, "x"), "records"), (shard(5, "y"), "records"), (shard(5, "x"), "pieces")] {
            assert_eq!(open().get(&other, what), None);
        }
        for entry in std::fs::read_dir(folder.path()).unwrap() {
            std::fs::write(entry.unwrap().path(), "torn").unwrap();
        }
        assert_eq!(open().get(&shard(5, "x"), "records"), None);
        assert!(Index::open(None, &[shard(5, "x")]).path.is_none());
    }
}
