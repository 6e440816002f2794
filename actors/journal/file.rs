//! A file of records.

use super::{JournalError, Record, Snapshot};
use loongforge_core::engine::fault;
use loongforge_core::message::{decode, encode};
use loongforge_core::transport::checksum;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const MAGIC: &[u8] = b"LFJL\x05\0";
const HEADER: usize = 8;

/// An open journal. Nobody else writes it while this lives.
pub struct Journal {
    path: PathBuf,
    file: File,
    /// It cannot be written any more, and that was said.
    is_broken: bool,
    /// The records so far that are in every journal of this run, however short.
    lasting: Vec<Record>,
    /// Bytes up to the last snapshot, and after it.
    head: u64,
    tail: u64,
}

impl Journal {
    /// Creates a journal, replacing what was there.
    ///
    /// # Errors
    /// Fails if it cannot be written, or another process writes it.
    pub fn create(path: &Path) -> Result<Self, JournalError> {
        let mut journal = Self::lock(path)?;
        let begin = journal.file.set_len(0).and_then(|()| journal.file.write_all(MAGIC));
        begin.map_err(|source| JournalError::File { path: path.to_owned(), source })?;
        Ok(journal)
    }

    /// Opens an existing journal and returns its records. An incomplete record at the end is removed.
    ///
    /// # Errors
    /// Fails if it cannot be read or written, another process writes it, or it is not a journal.
    pub fn open(path: &Path) -> Result<(Self, Vec<Record>), JournalError> {
        let mut journal = Self::lock(path)?;
        let failed = |source| JournalError::File { path: path.to_owned(), source };
        let mut bytes = Vec::new();
        journal.file.read_to_end(&mut bytes).map_err(failed)?;
        let (records, whole) = read(&bytes).ok_or_else(|| JournalError::NotAJournal { path: path.to_owned() })?;
        let end = journal.file.set_len(whole as u64).and_then(|()| journal.file.seek(SeekFrom::End(0)));
        end.map_err(failed)?;
        journal.lasting = records.iter().filter(|record| record.is_lasting()).cloned().collect();
        journal.tail = whole as u64;
        Ok((journal, records))
    }

    fn lock(path: &Path) -> Result<Self, JournalError> {
        let failed = |source| JournalError::File { path: path.to_owned(), source };
        loop {
            let file = hold(path, false).map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock => JournalError::Held { path: path.to_owned() },
                _ => failed(error),
            })?;
            // Whoever had it may have put another file in its place between the two.
            let (ours, named) = (file.metadata().map_err(failed)?, fs::metadata(path));
            if named.is_ok_and(|named| (named.dev(), named.ino()) == (ours.dev(), ours.ino())) {
                let path = path.to_owned();
                return Ok(Self { path, file, is_broken: false, lasting: Vec::new(), head: 0, tail: 0 });
            }
        }
    }

    /// Appends a record. If the journal cannot be written, a warning is logged once, and the run continues without it.
    pub fn append(&mut self, record: &Record) {
        if record.is_lasting() {
            self.lasting.push(record.clone());
        }
        if let Err(error) = self.try_append(record) {
            self.give_up(&error);
        }
    }

    fn try_append(&mut self, record: &Record) -> io::Result<()> {
        if self.is_broken {
            return Ok(());
        }
        let bytes = framed(record)?;
        let (first, second) = bytes.split_at(bytes.len() / 2);
        fault::of_journal("before_write");
        self.file.write_all(first)?;
        fault::of_journal("torn_write");
        self.file.write_all(second)?;
        fault::of_journal("after_write");
        self.tail += bytes.len() as u64;
        Ok(())
    }

    /// Syncs what was written to disk.
    pub fn sync(&mut self) {
        fault::of_journal("before_sync");
        match self.file.sync_data() {
            Err(error) if !self.is_broken => self.give_up(&error),
            _ => {}
        }
        fault::of_journal("after_sync");
    }

    /// Returns whether more than `bytes` were written since the last truncation, and more than it left.
    pub fn is_longer_than(&self, bytes: u64) -> bool {
        !self.is_broken && self.tail > bytes.max(if bytes == 0 { 0 } else { self.head })
    }

    /// Truncates the journal to a snapshot of all records so far. Until the new file is renamed, the old one is the journal.
    pub fn cut(&mut self, snapshot: Snapshot) {
        if let Err(error) = self.try_cut(snapshot) {
            // It is as good as it was, and tried again when it is twice as long.
            self.head = self.tail;
            tracing::warn!("journal {} cannot be truncated: {error}", self.path.display());
        }
    }

    fn try_cut(&mut self, snapshot: Snapshot) -> io::Result<()> {
        let mut bytes = MAGIC.to_vec();
        for record in &self.lasting {
            bytes.extend(framed(record)?);
        }
        bytes.extend(framed(&Record::Snapshot(snapshot))?);
        let new = self.path.with_extension("new");
        fault::of_journal("before_cut");
        let mut file = hold(&new, true)?;
        let (first, second) = bytes.split_at(bytes.len() / 2);
        file.write_all(first)?;
        fault::of_journal("torn_cut");
        file.write_all(second)?;
        file.sync_all()?;
        fault::of_journal("before_rename");
        fs::rename(&new, &self.path)?;
        fault::of_journal("after_rename");
        (self.file, self.head, self.tail) = (file, bytes.len() as u64, 0);
        if let Some(folder) = self.path.parent().and_then(|folder| File::open(folder).ok()) {
            // Where that cannot be done the machine's end may bring the old journal back, which is whole.
            let _ = folder.sync_all();
        }
        Ok(())
    }

    /// Empties the journal: who took over with less than the whole of it would be in a state that the run has left, and one that
    /// does not say that the run has ended would be taken over for ever.
    fn give_up(&mut self, error: &io::Error) {
        self.is_broken = true;
        let emptied = OpenOptions::new().write(true).open(&self.path).and_then(|file| file.set_len(0));
        let path = self.path.display();
        tracing::warn!("journal {path}: {error}; nobody could take over if this process died");
        if let Err(error) = emptied {
            tracing::warn!("journal {path} cannot be emptied: {error}; remove it before this run is started again");
        }
    }
}

/// Opens the file and locks it for this process, if its file system has locks.
fn hold(path: &Path, truncate: bool) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(truncate).open(path)?;
    unless_without_locks(flock(&file, FlockOperation::NonBlockingLockExclusive))?;
    Ok(file)
}

/// Ignores the absence of locks in a file system: NFS without its lock service returns ENOLCK, Lustre mounted without `flock`
/// ENOSYS, and others EOPNOTSUPP. The lock of the run's folder, which needs none, keeps a second scheduler out in any case.
fn unless_without_locks(locked: rustix::io::Result<()>) -> io::Result<()> {
    match locked {
        Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(()),
        locked => Ok(locked?),
    }
}

fn framed(record: &Record) -> io::Result<Vec<u8>> {
    let payload = encode(record).map_err(io::Error::other)?;
    let mut bytes = (payload.len() as u32).to_le_bytes().to_vec();
    bytes.extend(checksum(&payload).to_le_bytes());
    bytes.extend(payload);
    Ok(bytes)
}

/// Returns the complete records, and where they end; `None` if the file is not a journal.
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
    fn one_writes_at_a_time_also_when_it_is_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let mut journal = Journal::create(&path).unwrap();
        assert!(matches!(Journal::open(&path), Err(JournalError::Held { .. })));
        assert!(matches!(Journal::create(&path), Err(JournalError::Held { .. })));
        let told = Record::Input(loongforge_core::schedule::Input::StopRequested);
        [Record::Life(1), told.clone(), told.clone()].iter().for_each(|record| journal.append(record));
        let snapshot = Snapshot { outstanding: Default::default(), coordinator: vec![7; 100] };
        assert!(journal.is_longer_than(0) && !journal.is_longer_than(1 << 10));
        journal.cut(snapshot.clone());
        assert!(!journal.is_longer_than(0));
        assert!(matches!(Journal::open(&path), Err(JournalError::Held { .. })));
        journal.append(&told);
        drop(journal);
        let whole = [Record::Life(1), Record::Snapshot(snapshot), told];
        let (mut journal, records) = Journal::open(&path).unwrap();
        assert_eq!(records, whole);
        // Who goes on cuts what there was before it, too; where it cannot, the journal is as it was.
        fs::create_dir(path.with_extension("new")).unwrap();
        journal.cut(Snapshot { outstanding: Default::default(), coordinator: Vec::new() });
        assert!(!journal.is_longer_than(1), "it is not tried at once again");
        drop(journal);
        assert_eq!(Journal::open(&path).unwrap().1, whole);
        std::fs::write(&path, "hello").unwrap();
        assert!(matches!(Journal::open(&path), Err(JournalError::NotAJournal { .. })));
    }

    /// Its records would be read as others.
    #[test]
    fn a_journal_of_another_version_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        Journal::create(&path).unwrap().append(&Record::Life(1));
        let mut bytes = fs::read(&path).unwrap();
        bytes[4] -= 1;
        fs::write(&path, bytes).unwrap();
        assert!(matches!(Journal::open(&path), Err(JournalError::NotAJournal { .. })));
    }

    #[test]
    fn a_journal_that_cannot_be_written_is_nobodys_past() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let mut journal = Journal::create(&path).unwrap();
        journal.append(&Record::Life(1));
        journal.file = File::open(&path).unwrap();
        journal.append(&Record::Ended);
        journal.append(&Record::Ended);
        drop(journal);
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        assert!(matches!(Journal::open(&path), Err(JournalError::NotAJournal { .. })));
    }

    #[test]
    fn a_file_system_without_locks_has_journals_and_a_held_lock_is_an_error() {
        for without in [Errno::NOLCK, Errno::NOSYS, Errno::OPNOTSUPP] {
            unless_without_locks(Err(without)).unwrap();
        }
        for error in [Errno::WOULDBLOCK, Errno::IO, Errno::STALE] {
            assert_eq!(unless_without_locks(Err(error)).unwrap_err().raw_os_error(), Some(error.raw_os_error()));
        }
    }
}
