//! When bad samples end a run, and where they are listed.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::DataError;
use crate::config;
use crate::message::BadSample;

/// A few bad samples at the start are no fraction yet.
const MIN_SAMPLES: u64 = 100;

/// Counts samples and decides; it is part of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadSampleCounts {
    pub seen: u64,
    pub bad: u64,
    pub consecutive: u64,
}

/// Why the run ends.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TooManyBad {
    #[error(
        "{bad} of {seen} samples are bad, above data.on_bad_sample.max_fraction = {max_fraction}; the last: {last}"
    )]
    Fraction { bad: u64, seen: u64, max_fraction: f64, last: String },
    #[error("{count} bad samples in a row: data.on_bad_sample.max_consecutive; the last: {last}")]
    Consecutive { count: u64, last: String },
}

impl BadSampleCounts {
    pub fn good(&mut self) {
        self.seen += 1;
        self.consecutive = 0;
    }

    /// The fraction is judged from 100 samples on.
    pub fn bad(&mut self, sample: &BadSample, policy: &config::BadSamples) -> Result<(), TooManyBad> {
        self.seen += 1;
        self.bad += 1;
        self.consecutive += 1;
        let last = || format!("{}: {}", sample.source, sample.reason);
        if self.consecutive >= policy.max_consecutive as u64 {
            return Err(TooManyBad::Consecutive { count: self.consecutive, last: last() });
        }
        if self.seen >= MIN_SAMPLES && self.bad as f64 > policy.max_fraction * self.seen as f64 {
            let (bad, seen, max_fraction) = (self.bad, self.seen, policy.max_fraction);
            return Err(TooManyBad::Fraction { bad, seen, max_fraction, last: last() });
        }
        Ok(())
    }
}

/// `bad.jsonl`: one bad sample a line, appended.
pub struct BadSampleList {
    path: PathBuf,
    file: Option<File>,
}

impl BadSampleList {
    /// The file appears with the first bad sample.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_path_buf(), file: None }
    }

    pub fn append(&mut self, sample: &BadSample) -> Result<(), DataError> {
        let write = |error| DataError::write(&self.path, error);
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let file = File::options().append(true).create(true).open(&self.path).map_err(write)?;
                self.file.insert(file)
            }
        };
        let mut line = serde_json::to_vec(sample).expect("a bad sample is strings and a number");
        line.push(b'\n');
        file.write_all(&line).map_err(write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::SampleId;

    fn sample() -> BadSample {
        BadSample { id: SampleId(7), source: "a.jsonl:3".into(), reason: "empty file".into() }
    }

    #[test]
    fn stops_at_the_limits_and_not_before() {
        let policy = config::BadSamples { max_fraction: 0.1, max_consecutive: 3 };
        let mut counts = BadSampleCounts::default();
        for _ in 0..10 {
            counts.bad(&sample(), &policy).unwrap();
            (0..9).for_each(|_| counts.good());
        }
        assert_eq!((counts.seen, counts.bad), (100, 10));
        let error = counts.bad(&sample(), &policy).unwrap_err();
        assert!(error.to_string().contains("11 of 101") && error.to_string().contains("a.jsonl:3"), "{error}");

        let mut counts = BadSampleCounts::default();
        assert!(counts.bad(&sample(), &policy).is_ok() && counts.bad(&sample(), &policy).is_ok());
        assert_eq!(
            counts.bad(&sample(), &policy),
            Err(TooManyBad::Consecutive { count: 3, last: "a.jsonl:3: empty file".into() })
        );
    }

    #[test]
    fn the_list_is_appended_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bad.jsonl");
        for _ in 0..2 {
            BadSampleList::new(&path).append(&sample()).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 2);
        assert_eq!(serde_json::from_str::<BadSample>(text.lines().next().unwrap()).unwrap(), sample());
        let error = BadSampleList::new(Path::new("/no/such/bad.jsonl")).append(&sample()).unwrap_err();
        assert!(error.to_string().contains("/no/such/bad.jsonl"));
    }
}
