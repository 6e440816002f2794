//! A folder that a command fills with samples of its own making: they appear when all are written, so that no run takes a part for
//! the whole where the command was killed.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;

use tempfile::TempDir;

use super::error::DataError;

/// Begins the name of the folder in it that is written first.
const UNFINISHED: &str = ".unfinished-";

/// A folder that is being filled. Where it is dropped before it is published, nothing is in it.
pub(crate) struct NewFolder<'a> {
    dir: &'a Path,
    work: TempDir,
}

impl<'a> NewFolder<'a> {
    /// Begins to fill `dir`, which must be new or empty; what a command that was killed has left there is removed.
    ///
    /// # Errors
    /// `dir` holds something else or cannot be written.
    pub fn begin(dir: &'a Path) -> Result<Self, DataError> {
        let write = |error| DataError::write(dir, error);
        fs::create_dir_all(dir).map_err(write)?;
        let names = names_in(dir).map_err(|error| DataError::read(dir, error))?;
        let (unfinished, others): (Vec<_>, Vec<_>) =
            names.iter().partition(|name| name.to_string_lossy().starts_with(UNFINISHED));
        match (others.is_empty(), unfinished.first()) {
            (true, _) => {}
            (false, None) => return Err(DataError::file(dir, "holds files: name a new folder")),
            (false, Some(left)) => {
                let left = left.to_string_lossy();
                let reason = format!(
                    "holds files, and {left}, which an interrupted command has left: name a new folder, or empty this one"
                );
                return Err(DataError::file(dir, reason));
            }
        }
        unfinished.iter().try_for_each(|name| fs::remove_dir_all(dir.join(name))).map_err(write)?;
        let work = tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(dir).map_err(write)?;
        Ok(Self { dir, work })
    }

    /// Returns where files are written until they are published.
    pub fn path(&self) -> &Path {
        self.work.path()
    }

    /// Shows what was written, `last` after all else: where that is, all is.
    ///
    /// # Errors
    /// A file cannot be moved.
    pub fn publish(self, last: &str) -> Result<(), DataError> {
        let write = |error| DataError::write(self.dir, error);
        let mut names = names_in(self.path()).map_err(write)?;
        names.sort_by_key(|name| (name == last, name.clone()));
        names.iter().try_for_each(|name| fs::rename(self.path().join(name), self.dir.join(name))).map_err(write)
    }
}

fn names_in(folder: &Path) -> io::Result<Vec<OsString>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_whole_is_not_there_and_does_not_stay() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("a/data");
        let names = || {
            let mut names: Vec<String> =
                fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        let write = |new: &NewFolder<'_>| {
            fs::create_dir(new.path().join("images")).unwrap();
            fs::write(new.path().join("train.jsonl"), "{}\n").unwrap();
        };
        let killed = NewFolder::begin(&dir).unwrap();
        write(&killed);
        std::mem::forget(killed);
        assert!(names().len() == 1 && names()[0].starts_with(UNFINISHED), "{:?}", names());
        // One that fails leaves nothing, not even what one before it has left.
        write(&NewFolder::begin(&dir).unwrap());
        assert_eq!(names(), [""; 0]);
        let new = NewFolder::begin(&dir).unwrap();
        write(&new);
        new.publish("train.jsonl").unwrap();
        assert_eq!(names(), ["images", "train.jsonl"]);
        let error = NewFolder::begin(&dir).err().unwrap().to_string();
        assert!(error.ends_with("holds files: name a new folder"), "{error}");
        // Killed while the files were moved.
        fs::create_dir(dir.join(".unfinished-x")).unwrap();
        let error = NewFolder::begin(&dir).err().unwrap().to_string();
        assert!(error.contains(".unfinished-x, which an interrupted command has left"), "{error}");
    }
}
