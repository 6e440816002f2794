//! Records in a file.

use super::{JournalError, Record};
use loongforge_core::engine::fault;
use loongforge_core::message::{decode, encode};
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8] = b"LFJL\x01\0";
const HEADER: usize = 8;

/// A journal that is written. Nobody else writes it as long as this lives.
pub struct Journal {
    path: PathBuf,
    file: File,
    /// It cannot be written any more, and that was said.
    is_broken: bool,
}

impl Journal {
    /// A new one; what was there is gone.
    ///
    /// # Errors
    /// It cannot be written, or another process does.
    pub fn create(path: &Path) -> Result<Self, JournalError> {
        let mut journal = Self::lock(path)?;
        let begin = journal.file.set_len(0).and_then(|()| journal.file.write_all(MAGIC));
        begin.map_err(|source| JournalError::File { path: path.to_owned(), source })?;
        Ok(journal)
    }

    /// One that was written before, and its records. What is torn at its end is cut off.
    ///
    /// # Errors
    /// It cannot be read or written, or another process does; it is none.
    pub fn open(path: &Path) -> Result<(Self, Vec<Record>), JournalError> {
        let mut journal = Self::lock(path)?;
        let failed = |source| JournalError::File { path: path.to_owned(), source };
        let mut bytes = Vec::new();
        journal.file.read_to_end(&mut bytes).map_err(failed)?;
        let (records, whole) = read(&bytes).ok_or_else(|| JournalError::NotAJournal { path: path.to_owned() })?;
        let end = journal.file.set_len(whole as u64).and_then(|()| journal.file.seek(SeekFrom::End(0)));
        end.map_err(failed)?;
        Ok((journal, records))
    }

    fn lock(path: &Path) -> Result<Self, JournalError> {
        let failed = |source| JournalError::File { path: path.to_owned(), source };
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { path: path.to_owned(), file, is_broken: false }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(JournalError::Held { path: path.to_owned() }),
            Err(error) => Err(failed(error.into())),
        }
    }

    /// Writes one more record. A journal that cannot be written is warned of once: the run goes on without.
    pub fn append(&mut self, record: &Record) {
        if let Err(error) = self.try_append(record) {
            self.give_up(&error);
        }
    }

    fn try_append(&mut self, record: &Record) -> io::Result<()> {
        if self.is_broken {
            return Ok(());
        }
        let payload = encode(record).map_err(io::Error::other)?;
        let mut bytes = (payload.len() as u32).to_le_bytes().to_vec();
        bytes.extend(checksum(&payload).to_le_bytes());
        bytes.extend(payload);
        let (first, second) = bytes.split_at(bytes.len() / 2);
        fault::of_journal("before_write");
        self.file.write_all(first)?;
        fault::of_journal("torn_write");
        self.file.write_all(second)?;
        fault::of_journal("after_write");
        Ok(())
    }

    /// Forces what was written to the disk.
    pub fn sync(&mut self) {
        fault::of_journal("before_sync");
        match self.file.sync_data() {
            Err(error) if !self.is_broken => self.give_up(&error),
            _ => {}
        }
        fault::of_journal("after_sync");
    }

    fn give_up(&mut self, error: &io::Error) {
        self.is_broken = true;
        let path = self.path.display();
        tracing::warn!("journal {path}: {error}; nobody could take over if this process died");
    }
}

fn checksum(payload: &[u8]) -> u32 {
    loongforge_core::transport::checksum(payload)
}

/// The whole records, and where they end; `None` where it is no journal.
fn read(bytes: &[u8]) -> Option<(Vec<Record>, usize)> {
    let mut rest = bytes.strip_prefix(MAGIC)?;
    let mut records = Vec::new();
    while let Some((record, after)) = next(rest) {
        records.push(record);
        rest = after;
    }
    Some((records, bytes.len() - rest.len()))
}

fn next(bytes: &[u8]) -> Option<(Record, &[u8])> {
    let (header, rest) = bytes.split_at_checked(HEADER)?;
    let len = u32::from_le_bytes(header[..4].try_into().expect("they are four")) as usize;
    let crc = u32::from_le_bytes(header[4..].try_into().expect("they are four"));
    let (payload, rest) = rest.split_at_checked(len)?;
    (checksum(payload) == crc).then_some(())?;
    Some((decode(payload).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_tail_is_dropped_and_writing_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let records: Vec<Record> = (1..5).map(Record::Life).collect();
        let mut journal = Journal::create(&path).unwrap();
        records.iter().for_each(|record| journal.append(record));
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        let each = (whole.len() - MAGIC.len()) / records.len();
        for cut in MAGIC.len()..=whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let (mut journal, read) = Journal::open(&path).unwrap();
            assert_eq!(read, records[..(cut - MAGIC.len()) / each]);
            journal.append(&Record::Ended);
            drop(journal);
            let (_, again) = Journal::open(&path).unwrap();
            assert_eq!((again.len(), again.last()), (read.len() + 1, Some(&Record::Ended)));
        }
        for place in MAGIC.len()..whole.len() {
            let mut damaged = whole.clone();
            damaged[place] ^= 1;
            std::fs::write(&path, &damaged).unwrap();
            let (_, read) = Journal::open(&path).unwrap();
            assert_eq!(read, records[..(place - MAGIC.len()) / each], "a wrong byte at {place}");
        }
    }

    #[test]
    fn one_writes_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let journal = Journal::create(&path).unwrap();
        assert!(matches!(Journal::open(&path), Err(JournalError::Held { .. })));
        assert!(matches!(Journal::create(&path), Err(JournalError::Held { .. })));
        drop(journal);
        assert_eq!(Journal::open(&path).unwrap().1, []);
        std::fs::write(&path, "hello").unwrap();
        assert!(matches!(Journal::open(&path), Err(JournalError::NotAJournal { .. })));
    }
}
