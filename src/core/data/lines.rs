//! A text file read line by line in any order: only the offsets are held. Not for files that change
//! while a run reads them.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::error::{BadSample, DataError};

/// A line longer than this is a bad sample: pixels belong in files of their own.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// A file and where its lines that are not blank begin.
pub struct Lines {
    path: PathBuf,
    file: Mutex<File>,
    entries: Vec<Entry>,
}

#[derive(Clone, Copy)]
struct Entry {
    offset: u64,
    len: u64,
    number: u64,
}

impl Lines {
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let read = |source| DataError::read(path, source);
        let file = File::open(path).map_err(read)?;
        if file.metadata().map_err(read)?.is_dir() {
            return Err(DataError::file(path, "is a folder; name the .jsonl file in it"));
        }
        let mut reader = BufReader::with_capacity(1 << 20, file);
        let (mut entries, mut offset, mut number) = (Vec::new(), 0, 0);
        loop {
            let first = reader.fill_buf().map_err(read)?.first().copied();
            let len = reader.skip_until(b'\n').map_err(read)? as u64;
            if len == 0 {
                break;
            }
            number += 1;
            let blank = len == 1 && first == Some(b'\n') || len == 2 && first == Some(b'\r');
            if !blank {
                entries.push(Entry { offset, len, number });
            }
            offset += len;
        }
        if entries.is_empty() {
            return Err(DataError::Empty { path: path.to_path_buf() });
        }
        Ok(Self { path: path.to_path_buf(), file: Mutex::new(reader.into_inner()), entries })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lines that are not blank: at least 1.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Always false: an empty file is refused by [`Lines::open`].
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of the line `index`, its end included.
    pub fn num_bytes(&self, index: usize) -> u64 {
        self.entries[index].len
    }

    /// The line `index` and its number, counted from 1.
    pub fn read(&self, index: usize) -> Result<String, BadSample> {
        let entry = self.entries[index];
        if entry.len > MAX_LINE_BYTES {
            return Err(self.bad(index, format!("{} bytes, more than {MAX_LINE_BYTES}", entry.len)));
        }
        let mut bytes = vec![0; entry.len as usize];
        {
            let mut file = self.file.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            file.seek(SeekFrom::Start(entry.offset))
                .and_then(|_| file.read_exact(&mut bytes))
                .map_err(|error| self.bad(index, format!("cannot be read: {error}")))?;
        }
        String::from_utf8(bytes).map_err(|_| self.bad(index, "is not UTF-8".to_owned()))
    }

    pub fn bad(&self, index: usize, reason: String) -> BadSample {
        BadSample { file: self.path.clone(), line: self.entries[index].number, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    #[test]
    fn reads_any_line_and_keeps_line_numbers_over_blank_ones() {
        let file = write("{\"a\":1}\r\n\n\r\nzwei\nlast".as_bytes());
        let lines = Lines::open(file.path()).unwrap();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines.read(2).unwrap(), "last");
        assert_eq!(lines.read(0).unwrap().trim(), "{\"a\":1}");
        assert_eq!(lines.bad(1, String::new()).line, 4);
    }

    #[test]
    fn missing_empty_and_not_utf8_are_named() {
        let error = Lines::open(Path::new("no/such.jsonl")).err().unwrap().to_string();
        assert!(error.contains("no/such.jsonl"), "{error}");
        let empty = write(b"\n\n");
        assert!(matches!(Lines::open(empty.path()), Err(DataError::Empty { .. })));
        let folder = tempfile::tempdir().unwrap();
        assert!(Lines::open(folder.path()).err().unwrap().to_string().contains("folder"));
        let latin = write(b"ok\n\xff\xfe\n");
        let bad = Lines::open(latin.path()).unwrap().read(1).unwrap_err();
        assert_eq!((bad.line, bad.reason.as_str()), (2, "is not UTF-8"));
    }
}
