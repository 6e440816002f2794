//! Files in the cache of the hub that were not compared with their tags yet. Large files' tags are their hashes; the library gives a
//! file its name as soon as its last byte is there, and a process may be killed before it has compared it.

use super::hub_lock::{locks_of, wait_for_others};
use loongforge_core::checkpoint::sha256;
use loongforge_core::files::if_there;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// The ending of notes beside locks.
const ENDING: &str = ".unchecked";

/// A file of the cache that may not be compared yet, which a note beside it says. Only the process that has the file's lock reads the
/// note.
pub(super) struct Unchecked {
    tag: String,
    blob: PathBuf,
    note: PathBuf,
}

impl Unchecked {
    /// Returns the file with the tag `tag` of a repository, which is `folder` in the cache.
    pub fn of(cache: &Path, folder: &str, tag: &str) -> Self {
        let note = locks_of(cache, folder).join(format!("{tag}{ENDING}"));
        Self { tag: tag.to_owned(), blob: cache.join(folder).join("blobs").join(tag), note }
    }

    /// Notes that the file is about to be downloaded, if its tag is a hash.
    ///
    /// # Errors
    /// The note cannot be written.
    pub fn note(&self) -> io::Result<()> {
        if self.tag.len() != 64 || !self.tag.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(());
        }
        self.note.parent().map_or(Ok(()), fs::create_dir_all)?;
        File::create(&self.note)?.sync_all()
    }

    /// Compares the file with its tag if there is a note, and removes the note; a file that differs is removed as well, and `false` is
    /// returned.
    ///
    /// # Errors
    /// The file cannot be read, or it is another one and cannot be removed.
    pub fn compare(&self) -> io::Result<bool> {
        if !self.note.exists() {
            return Ok(true);
        }
        let found = if_there(sha256(&self.blob))?;
        let is_same = found.is_none_or(|found| found == self.tag.to_ascii_lowercase());
        if !is_same {
            fs::remove_file(&self.blob)?;
        }
        // In a cache that cannot be written it is compared once more.
        let _ = fs::remove_file(&self.note);
        Ok(is_same)
    }
}

/// Compares all files of a repository, which is `folder` in the cache, that a killed process has left without; those that are not what
/// their tags say are removed, and are downloaded again. `id` is the repository to a person.
///
/// # Errors
/// Fails as [`Unchecked::compare`] does.
pub(super) fn compare_left(cache: &Path, folder: &str, id: &str) -> io::Result<()> {
    // Without notes, or without a folder of locks, nothing was left.
    for entry in fs::read_dir(locks_of(cache, folder)).into_iter().flatten() {
        let name = entry?.file_name();
        let Some(tag) = name.to_str().and_then(|name| name.strip_suffix(ENDING)) else { continue };
        let unchecked = Unchecked::of(cache, folder, tag);
        // One that another process is still downloading may take long: that process compares it.
        if unchecked.blob.exists() {
            let _alone = wait_for_others(cache, folder, tag, &format!("a file of {id}"));
            unchecked.compare()?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::text::hex;
    use sha2::{Digest, Sha256};

    #[test]
    fn a_file_that_was_not_compared_is_compared_before_it_is_used() {
        let cache = tempfile::tempdir().unwrap();
        let folder = "models--org--name";
        let tag = hex(Sha256::digest("weights"));
        let unchecked = Unchecked::of(cache.path(), folder, &tag);
        let left = |contents: &str| {
            unchecked.note().unwrap();
            fs::create_dir_all(unchecked.blob.parent().unwrap()).unwrap();
            fs::write(&unchecked.blob, contents).unwrap();
            compare_left(cache.path(), folder, "org/name").unwrap();
            assert!(!unchecked.note.exists());
            unchecked.blob.exists()
        };
        assert!(left("weights"));
        assert!(!left("weighty"));
        // It was killed before the last byte.
        unchecked.note().unwrap();
        assert!(unchecked.compare().unwrap() && !unchecked.note.exists());
        compare_left(cache.path(), "models--org--other", "org/other").unwrap();
        // Another process is downloading it.
        let other = wait_for_others(cache.path(), folder, &tag, "weights of org/name").unwrap();
        unchecked.note().unwrap();
        compare_left(cache.path(), folder, "org/name").unwrap();
        assert!(unchecked.note.exists());
        drop(other);
        // A tag that is no hash says nothing.
        let other = Unchecked::of(cache.path(), folder, "abc");
        other.note().unwrap();
        assert!(!other.note.exists() && other.compare().unwrap());
    }
}
