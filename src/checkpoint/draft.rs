//! Folders that are seen whole or not at all: written beside where they are to be, and moved there.

use super::export_error::ExportError;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A folder that is written beside where it is to be, and moved there when it is whole; removed where anything fails.
pub(super) struct Draft {
    dir: tempfile::TempDir,
    /// Has the lock that this process holds on it.
    _opened: File,
    /// Where it is to be: no symbolic link.
    out: PathBuf,
}

impl Draft {
    /// # Errors
    /// `out` holds something, cannot be replaced by a folder, or its parent cannot be written to.
    pub fn beside(out: &Path) -> Result<Self, ExportError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            |source| ExportError::Io { path, source }
        };
        if out.exists() && fs::read_dir(out).map_err(io(out))?.next().is_some() {
            return Err(ExportError::Exists { out: out.to_owned() });
        }
        let refused = |reason: &str| ExportError::Form { path: out.to_owned(), reason: reason.to_owned() };
        // A folder cannot be moved to the place of a link, but to that of the empty folder that it points to.
        let real = match out.exists() {
            true => out.canonicalize().map_err(io(out))?,
            false if out.is_symlink() => {
                return Err(refused(
                    "it is a symbolic link to a folder that does not exist: create it, or name another one",
                ));
            }
            false => out.to_owned(),
        };
        let parent = real.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(parent).map_err(io(parent))?;
        let disk = |path: &Path| fs::metadata(path).map(|found| found.dev()).map_err(io(path));
        if real.exists() && disk(&real)? != disk(parent)? {
            return Err(refused("a disk is mounted there, which cannot be replaced by a folder: name a folder in it"));
        }
        let prefix = unfinished(&real);
        remove_left(parent, &prefix);
        // Beside it, so that the rename stays on one disk. A temporary folder is its owner's alone unless it is told otherwise.
        let mut drafts = tempfile::Builder::new();
        drafts.prefix(&prefix).permissions(Permissions::from_mode(0o777));
        let dir = drafts.tempdir_in(parent).map_err(io(parent))?;
        let opened = File::open(dir.path()).map_err(io(parent))?;
        // Without locks in the file system nobody takes it for one that was left.
        let _ = opened.try_lock();
        Ok(Self { dir, _opened: opened, out: real })
    }

    /// Returns the temporary folder that files are written into until the draft is published.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// # Errors
    /// The folder cannot be moved.
    pub fn publish(self) -> Result<(), ExportError> {
        let draft = self.dir.keep();
        fs::rename(&draft, &self.out).map_err(|source| {
            let _ = fs::remove_dir_all(&draft);
            ExportError::Io { path: self.out, source }
        })
    }
}

/// Returns the prefix of the names of drafts of `out`.
pub(super) fn unfinished(out: &Path) -> String {
    format!(".{}.unfinished-", out.file_name().unwrap_or_default().to_string_lossy())
}

/// Removes the drafts in `parent` whose names begin with `prefix` that commands have left which were killed: nobody holds their locks.
pub(super) fn remove_left(parent: &Path, prefix: &str) {
    let names = fs::read_dir(parent).into_iter().flatten().flatten();
    for left in names.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)) {
        let path = left.path();
        if File::open(&path).is_ok_and(|opened| opened.try_lock().is_ok()) {
            // What cannot be removed takes space and nothing else.
            let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn drafts_of_killed_commands_are_removed_and_those_of_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let [out, left, other] = ["out", ".out.unfinished-a", ".more.unfinished-a"].map(|name| dir.path().join(name));
        for draft in [&left, &other] {
            fs::create_dir(draft).unwrap();
            fs::write(draft.join("model.safetensors"), "x").unwrap();
        }
        let first = Draft::beside(&out).unwrap();
        assert!(!left.exists() && other.is_dir());
        let second = Draft::beside(&out).unwrap();
        assert!(first.path().is_dir() && first.path() != second.path());
        drop(second);
        first.publish().unwrap();
        let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, [".more.unfinished-a", "out"]);
        let usual = dir.path().join("usual");
        fs::create_dir(&usual).unwrap();
        let [out, usual] = [out, usual].map(|path| path.metadata().unwrap().permissions().mode());
        assert_eq!(out, usual);
    }

    #[test]
    fn a_link_to_an_empty_folder_stays_and_one_to_nothing_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let [link, disk, lost] = ["link", "disk", "lost"].map(|name| dir.path().join(name));
        fs::create_dir_all(disk.join("out")).unwrap();
        symlink(disk.join("out"), &link).unwrap();
        symlink(disk.join("nothing"), &lost).unwrap();
        let draft = Draft::beside(&link).unwrap();
        let real = disk.canonicalize().unwrap();
        assert_eq!(draft.path().parent(), Some(real.as_path()), "it is on the disk of the folder");
        fs::write(draft.path().join("config.json"), "{}").unwrap();
        draft.publish().unwrap();
        assert!(link.is_symlink() && link.join("config.json").is_file());
        assert_eq!(fs::read_dir(&disk).unwrap().count(), 1);
        assert!(matches!(Draft::beside(&link), Err(ExportError::Exists { .. })));
        let error = Draft::beside(&lost).err().expect("it points to nothing").to_string();
        assert!(error.contains("lost: it is a symbolic link to a folder that does not exist"), "{error}");
    }
}
