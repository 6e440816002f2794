//! Files that are the same in every checkpoint of a run: written once, and linked from then on.

use super::error::WeightsError;
use loongforge_core::message::SavedFile;
use rustix::fs::{AtFlags, CWD, linkat};
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;

/// The files that were written last, by their names in a checkpoint. A link is a second name of the same bytes: it stays when
/// the checkpoint that they were written for is moved or deleted.
#[derive(Default)]
pub struct SameFiles(Mutex<BTreeMap<String, Written>>);

struct Written {
    /// Open, so that it is found wherever its checkpoint is.
    file: File,
    changed: (i64, i64),
    saved: SavedFile,
}

impl SameFiles {
    /// Puts the file `name` into `folder`: as a link to the one that was put before, where that is as it was; or else as
    /// `write` writes it.
    ///
    /// # Errors
    /// Fails as `write` does.
    pub fn put(
        &self,
        folder: &Path,
        name: &str,
        write: impl FnOnce() -> Result<SavedFile, WeightsError>,
    ) -> Result<SavedFile, WeightsError> {
        let path = folder.join(name);
        let mut files = self.0.lock().expect("nobody panics with it");
        if let Some(written) = files.get(name)
            && written.link(&path).is_ok()
        {
            return Ok(written.saved.clone());
        }
        files.remove(name);
        let saved = write()?;
        // Without it the next checkpoint has a copy.
        if let Ok(written) = Written::open(&path, &saved) {
            files.insert(name.to_owned(), written);
        }
        Ok(saved)
    }
}

impl Written {
    fn open(path: &Path, saved: &SavedFile) -> io::Result<Self> {
        let file = File::open(path)?;
        let changed = changed(&file.metadata()?);
        Ok(Self { file, changed, saved: saved.clone() })
    }

    /// Links the file at `path`. It is an error where file systems have no links, the file is gone, or somebody has written to it.
    fn link(&self, path: &Path) -> io::Result<()> {
        let found = self.file.metadata()?;
        if changed(&found) != self.changed || found.len() != self.saved.bytes {
            return Err(io::Error::other("it has changed"));
        }
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        let from = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        Ok(linkat(CWD, from, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
    }
}

/// Returns when the contents changed last, in seconds and nanoseconds.
fn changed(found: &Metadata) -> (i64, i64) {
    (found.mtime(), found.mtime_nsec())
}

/// Creates the file at `path`. One that is there and has other names keeps its bytes under those.
pub(super) fn create(path: &Path) -> io::Result<File> {
    if path.symlink_metadata().is_ok_and(|found| found.is_file() && found.nlink() > 1) {
        fs::remove_file(path)?;
    }
    File::create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(same: &SameFiles, folder: &Path, contents: &str) -> bool {
        let mut wrote = false;
        let write = || {
            wrote = true;
            let path = folder.join("x");
            fs::write(&path, contents).unwrap();
            Ok(SavedFile { name: "x".into(), bytes: contents.len() as u64, sha256: contents.into(), tensors: vec![] })
        };
        assert_eq!(same.put(folder, "x", write).unwrap().bytes, contents.len() as u64);
        wrote
    }

    #[test]
    fn a_file_is_linked_wherever_it_went_until_it_is_gone_or_changed() {
        let root = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(&path).unwrap();
            path
        };
        let same = SameFiles::default();
        assert!(put(&same, &folder("draft"), "abc"));
        fs::rename(folder("draft"), root.path().join("step-1")).unwrap();
        assert!(!put(&same, &folder("step-2"), "abc"));
        fs::remove_dir_all(folder("step-1")).unwrap();
        assert!(!put(&same, &folder("step-3"), "abc"), "the other name is there");
        assert_eq!(fs::metadata(folder("step-3").join("x")).unwrap().nlink(), 2);
        // Another writer in the same folder leaves the other checkpoint alone.
        drop(create(&folder("step-3").join("x")).unwrap());
        assert_eq!(fs::read_to_string(folder("step-2").join("x")).unwrap(), "abc");
        fs::write(folder("step-2").join("x"), "changed").unwrap();
        assert!(put(&same, &folder("step-4"), "abc"), "a file that somebody has changed is written anew");
        fs::remove_dir_all(folder("step-4")).unwrap();
        assert!(put(&same, &folder("step-5"), "abc"), "it has no name any more");
    }
}
