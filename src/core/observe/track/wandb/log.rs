//! The log of records in a `.wandb` file: blocks of 32 KiB as in LevelDB's log, behind a header of its own. A record that does not
//! fit into a block goes on in the next ones.
//!
//! ```text
//! file    ":W&B", u16 0xbee1, u8 0 (version), then records; the first block includes these seven bytes
//! record  u32 CRC-32 of kind and data, u16 length, u8 kind (1 whole, 2 first, 3 middle, 4 last), data; little-endian
//! ```

use crate::observe::error::ObserveError;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 7] = b":W&B\xe1\xbe\x00";
const BLOCK: u64 = 32 << 10;
const HEAD: u64 = 7;
const WHOLE: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

/// A file that records are appended to; each is in the file when [`LogFile::append`] returns.
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    len: u64,
}

impl LogFile {
    /// Creates a new file.
    ///
    /// # Errors
    /// It is there already, or cannot be written.
    pub fn create(path: &Path) -> Result<Self, ObserveError> {
        let written = File::options().write(true).create_new(true).open(path).and_then(|mut file| {
            file.write_all(MAGIC)?;
            Ok(file)
        });
        let file = written.map_err(|error| ObserveError::write(path, error))?;
        Ok(Self { path: path.to_owned(), file, len: HEAD })
    }

    /// Goes on with a file after its first `len` bytes; what follows is dropped.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn go_on(path: &Path, len: u64) -> Result<Self, ObserveError> {
        let opened = File::options().write(true).open(path).and_then(|mut file| {
            file.set_len(len)?;
            file.seek(SeekFrom::Start(len))?;
            Ok(file)
        });
        let file = opened.map_err(|error| ObserveError::write(path, error))?;
        Ok(Self { path: path.to_owned(), file, len })
    }

    /// # Errors
    /// The file cannot be written: it is as before.
    pub fn append(&mut self, record: &[u8]) -> Result<(), ObserveError> {
        let bytes = framed(record, self.len);
        let written = self.file.write_all(&bytes);
        match written {
            Ok(()) => self.len += bytes.len() as u64,
            // Half a record would end the file for whoever reads it.
            Err(_) => {
                let _ = self.file.set_len(self.len).and_then(|()| self.file.seek(SeekFrom::Start(self.len)));
            }
        }
        written.map_err(|error| ObserveError::write(&self.path, error))
    }
}

/// Returns the bytes of a record that begins at `at` of the file.
fn framed(record: &[u8], mut at: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(record.len() + 2 * HEAD as usize);
    let (mut rest, mut is_first) = (record, true);
    loop {
        let mut room = BLOCK - at % BLOCK;
        if room < HEAD {
            out.resize(out.len() + room as usize, 0);
            at += room;
            room = BLOCK;
        }
        let (part, after) = rest.split_at(rest.len().min((room - HEAD) as usize));
        let kind = match (is_first, after.is_empty()) {
            (true, true) => WHOLE,
            (true, false) => FIRST,
            (false, false) => MIDDLE,
            (false, true) => LAST,
        };
        out.extend(checksum(kind, part).to_le_bytes());
        out.extend((part.len() as u16).to_le_bytes());
        out.push(kind);
        out.extend(part);
        at += HEAD + part.len() as u64;
        (rest, is_first) = (after, false);
        if rest.is_empty() {
            return out;
        }
    }
}

fn checksum(kind: u8, data: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&[kind]);
    sum.update(data);
    sum.finalize()
}

/// The records of a file in their order, each with the place in the file that it begins at. It ends where the file does, or at the
/// first record that is not whole.
pub(super) struct Records {
    file: BufReader<File>,
    at: u64,
}

impl Records {
    /// # Errors
    /// It cannot be read, or is no file of W&B.
    pub fn open(path: &Path) -> Result<Self, ObserveError> {
        let read = |source| ObserveError::Read { path: path.to_owned(), source };
        let mut file = BufReader::new(File::open(path).map_err(read)?);
        let mut magic = [0; MAGIC.len()];
        file.read_exact(&mut magic).map_err(read)?;
        if &magic != MAGIC {
            return Err(read(io::Error::new(io::ErrorKind::InvalidData, "it does not start like a W&B file")));
        }
        Ok(Self { file, at: HEAD })
    }

    /// Returns the place behind the last record that was read.
    pub fn end(&self) -> u64 {
        self.at
    }

    /// Returns a part of a record, its kind, and the place behind it.
    fn part(&mut self, mut at: u64) -> Option<(u8, Vec<u8>, u64)> {
        let room = BLOCK - at % BLOCK;
        if room < HEAD {
            self.file.read_exact(&mut vec![0; room as usize]).ok()?;
            at += room;
        }
        let mut head = [0; HEAD as usize];
        self.file.read_exact(&mut head).ok()?;
        let [a, b, c, d, low, high, kind] = head;
        let mut data = vec![0; usize::from(u16::from_le_bytes([low, high]))];
        self.file.read_exact(&mut data).ok()?;
        let is_whole = u32::from_le_bytes([a, b, c, d]) == checksum(kind, &data);
        is_whole.then(|| (kind, data, at + HEAD))
    }
}

impl Iterator for Records {
    type Item = (u64, Vec<u8>);

    fn next(&mut self) -> Option<Self::Item> {
        let begin = self.at;
        let (kind, mut record, mut at) = self.part(begin)?;
        at += record.len() as u64;
        let mut is_open = kind == FIRST;
        if !is_open && kind != WHOLE {
            return None;
        }
        while is_open {
            let (kind, data, next) = self.part(at)?;
            if kind != MIDDLE && kind != LAST {
                return None;
            }
            at = next + data.len() as u64;
            record.extend(data);
            is_open = kind == MIDDLE;
        }
        self.at = at;
        Some((begin, record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::hex;
    use std::fs;

    /// The expected bytes are those that `wandb.sdk.internal.datastore` of wandb 0.19.11 writes for the same record into a new file.
    #[test]
    fn a_record_has_the_bytes_of_wandb() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run-x.wandb");
        LogFile::create(&path).unwrap().append(b"loongforge").unwrap();
        assert_eq!(hex(fs::read(&path).unwrap()), GOLDEN);
    }

    #[test]
    fn records_of_any_length_are_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run-x.wandb");
        let mut log = LogFile::create(&path).unwrap();
        // The last ones leave 7, 6 and no bytes of a block.
        let lens = [0, 1, 32_000, 32_768, 100_000, 5];
        let records: Vec<Vec<u8>> = lens.iter().map(|&len| vec![len as u8; len]).collect();
        records.iter().for_each(|record| log.append(record).unwrap());
        for left in [7, 6, 3, 0] {
            let room = BLOCK - log.len % BLOCK;
            let len = if room >= HEAD + left { room - HEAD - left } else { room + BLOCK - 2 * HEAD - left };
            log.append(&vec![7; len as usize]).unwrap();
            log.append(b"after").unwrap();
        }
        let found: Vec<(u64, Vec<u8>)> = Records::open(&path).unwrap().collect();
        assert_eq!(found.len(), records.len() + 8);
        assert!(found.iter().map(|(_, record)| record).take(records.len()).eq(records.iter()));
        let mut all = Records::open(&path).unwrap();
        while all.next().is_some() {}
        assert_eq!(all.end(), fs::metadata(&path).unwrap().len());
        // A torn end is not read, and the file goes on before it.
        let (begin, last) = found.last().unwrap().clone();
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(begin + HEAD + 1).unwrap();
        let mut torn = Records::open(&path).unwrap();
        assert_eq!((torn.by_ref().count(), torn.end()), (found.len() - 1, begin));
        LogFile::go_on(&path, begin).unwrap().append(&last).unwrap();
        assert!(Records::open(&path).unwrap().eq(found));
    }

    #[test]
    fn another_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run-x.wandb");
        fs::write(&path, "something else").unwrap();
        assert!(Records::open(&path).err().unwrap().to_string().contains("does not start like a W&B file"));
    }

    const GOLDEN: &str = "3a572642e1be00dbcf9d100a00016c6f6f6e67666f726765";
}
