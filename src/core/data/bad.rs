//! Describes where bad samples are listed.

use std::fs;
use std::path::Path;

use super::error::DataError;
use crate::files::{AppendFile, if_there, replace};
use crate::message::{SampleId, SkippedSample};

/// `bad.jsonl`: one bad sample a line, appended.
pub struct BadSampleList {
    file: AppendFile,
    len: u64,
}

impl BadSampleList {
    /// Keeps the samples before `cursor`, where the run goes on reading, but for those of `held`, ascending, which it reads again, and
    /// drops the others: those of a run that got further before it was stopped, and half a line at the end. Where there is none, the
    /// file appears with the first bad sample.
    ///
    /// # Errors
    /// The file is there and cannot be read or written.
    pub fn open(path: &Path, cursor: SampleId, held: &[SampleId]) -> Result<Self, DataError> {
        let write = |error| DataError::write(path, error);
        let old = if_there(fs::read(path)).map_err(|error| DataError::read(path, error))?.unwrap_or_default();
        // The half line may end within a letter.
        let old = String::from_utf8_lossy(&old).into_owned();
        let is_before = |id: SampleId| id < cursor && held.binary_search(&id).is_err();
        let is_kept = |line: &&str| serde_json::from_str(line).is_ok_and(|sample: SkippedSample| is_before(sample.id));
        let kept: Vec<&str> = old.lines().filter(is_kept).collect();
        let len = kept.len() as u64;
        let kept: String = kept.into_iter().flat_map(|line| [line, "\n"]).collect();
        if kept.is_empty() && !old.is_empty() {
            fs::remove_file(path).map_err(write)?;
        } else if kept != old {
            replace(path, kept.as_bytes()).map_err(write)?;
        }
        Ok(Self { file: AppendFile::later(path), len })
    }

    /// Returns where `bad.jsonl` is, which may not exist yet.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns the number of bad samples of the run so far.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether no sample of the run was bad so far.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Counts the sample, also where it cannot be written.
    ///
    /// # Errors
    /// The list cannot be written.
    pub fn append(&mut self, sample: &SkippedSample) -> Result<(), DataError> {
        self.len += 1;
        let mut line = serde_json::to_vec(sample).expect("a bad sample is strings and a number");
        line.push(b'\n');
        // Of a list that somebody removed the metrics tell.
        self.file.append(&line).map(|_| ()).map_err(|error| DataError::write(self.file.path(), error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;

    fn sample(id: u64) -> SkippedSample {
        SkippedSample { id: SampleId(id), source: "a.jsonl:3".into(), reason: "empty file".into(), too_long: false }
    }

    fn ids(path: &Path) -> Vec<u64> {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str::<SkippedSample>(line).unwrap().id.0).collect()
    }

    #[test]
    fn a_resumed_run_lists_a_sample_once_and_a_new_one_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bad.jsonl");
        let mut list = BadSampleList::open(&path, SampleId(0), &[]).unwrap();
        assert!(!path.exists());
        [3, 7, 9].into_iter().for_each(|id| list.append(&sample(id)).unwrap());
        assert_eq!((list.len(), ids(&path)), (3, vec![3, 7, 9]));
        File::options().append(true).open(&path).unwrap().write_all(b"{\"id\":1,\"source\":\"\xe4\xb8").unwrap();

        let mut list = BadSampleList::open(&path, SampleId(8), &[]).unwrap();
        list.append(&sample(9)).unwrap();
        assert_eq!((list.len(), ids(&path)), (3, vec![3, 7, 9]));
        // Those that are read again may be good now, or are listed again.
        let mut list = BadSampleList::open(&path, SampleId(10), &[SampleId(2), SampleId(7)]).unwrap();
        list.append(&sample(7)).unwrap();
        assert_eq!((list.len(), ids(&path)), (3, vec![3, 9, 7]));
        assert!(BadSampleList::open(&path, SampleId(0), &[]).unwrap().is_empty() && !path.exists());
    }

    #[test]
    fn a_list_that_cannot_be_written_is_named() {
        let mut list = BadSampleList::open(Path::new("/no/such/bad.jsonl"), SampleId(0), &[]).unwrap();
        let error = list.append(&sample(1)).unwrap_err();
        assert!(error.to_string().contains("/no/such/bad.jsonl"));
        assert_eq!(list.len(), 1);
    }
}
