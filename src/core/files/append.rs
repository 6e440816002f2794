//! Files that lines or records are appended to for as long as a run goes on.

use super::is_missing;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Says where bytes were appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The bytes are behind those that were there.
    Further,
    /// The bytes are at the beginning of a new file: the one before was removed, moved or replaced by somebody else.
    Anew,
}

/// A file that is appended to and stays open.
pub struct AppendFile {
    path: PathBuf,
    file: Option<File>,
    /// True if the file was removed or replaced, and no caller has been told.
    is_lost: bool,
}

impl AppendFile {
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: Some(opened(path)?), ..Self::later(path) })
    }

    /// The file appears with the first bytes.
    pub fn later(path: &Path) -> Self {
        Self { path: path.to_owned(), file: None, is_lost: false }
    }

    /// Returns the path that was given to [`AppendFile::new`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends all of `bytes` or nothing, to the file that has the path now.
    ///
    /// # Errors
    /// They cannot be written: the file is as before.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<Appended> {
        if self.file.as_ref().is_some_and(|file| !has_name(file, &self.path)) {
            (self.file, self.is_lost) = (None, true);
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                if let Some(folder) = self.path.parent().filter(|_| self.is_lost) {
                    fs::create_dir_all(folder)?;
                }
                self.file.insert(opened(&self.path)?)
            }
        };
        append_whole(file, bytes)?;
        Ok(if std::mem::take(&mut self.is_lost) { Appended::Anew } else { Appended::Further })
    }
}

/// Appends all of `bytes` or nothing: half a line at the end of a full disk would take the next one with it.
///
/// # Errors
/// They cannot be written: the file is as before.
pub fn append_whole(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    let len = file.metadata()?.len();
    file.write_all(bytes).inspect_err(|_| drop(file.set_len(len)))
}

fn opened(path: &Path) -> io::Result<File> {
    File::options().append(true).create(true).open(path)
}

/// Returns whether `path` still names the file; also where that cannot be found out.
fn has_name(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(ours), Ok(named)) => (ours.dev(), ours.ino()) == (named.dev(), named.ino()),
        (_, Err(error)) => !is_missing(&error),
        (Err(_), _) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_removed_or_moved_is_begun_anew_and_that_is_said_once() {
        let dir = tempfile::tempdir().unwrap();
        let (run, aside) = (dir.path().join("run"), dir.path().join("aside"));
        fs::create_dir(&run).unwrap();
        let path = run.join("lines");
        let mut file = AppendFile::later(&path);
        assert!(!path.exists());
        assert_eq!(file.append(b"a\n").unwrap(), Appended::Further);
        fs::rename(&run, &aside).unwrap();
        assert_eq!(file.append(b"b\n").unwrap(), Appended::Anew);
        assert_eq!(file.append(b"c\n").unwrap(), Appended::Further);
        assert_eq!(fs::read_to_string(&path).unwrap(), "b\nc\n");
        assert_eq!(fs::read_to_string(aside.join("lines")).unwrap(), "a\n");
        fs::remove_dir_all(&run).unwrap();
        fs::write(&run, "in its place").unwrap();
        file.append(b"d\n").unwrap_err();
        fs::remove_file(&run).unwrap();
        assert_eq!(file.append(b"e\n").unwrap(), Appended::Anew);
        assert_eq!(fs::read_to_string(&path).unwrap(), "e\n");
    }
}
