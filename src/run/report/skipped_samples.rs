//! The samples that a run skipped: all of them listed in files, the first ones shown.

use loongforge_core::data::{BadSampleList, DataError};
use loongforge_core::message::{SampleId, SkippedSample};
use loongforge_core::observe::Console;
use std::path::Path;

/// Bad samples that are shown; the others are only listed in `bad.jsonl`.
const MAX_SHOWN: u64 = 5;

/// Holds the lists of skipped samples.
pub(super) struct SkippedSamples {
    bad: BadSampleList,
    /// Samples that are longer than a pack.
    too_long: BadSampleList,
    num_shown: u64,
}

impl SkippedSamples {
    /// Continues the lists in the run's folder `dir`, of the samples before `cursor` but for `held`.
    ///
    /// # Errors
    /// A list is there and cannot be read or written.
    pub fn open(dir: &Path, cursor: SampleId, held: &[SampleId]) -> Result<Self, DataError> {
        Ok(Self {
            bad: BadSampleList::open(&dir.join("bad.jsonl"), cursor, held)?,
            too_long: BadSampleList::open(&dir.join("too_long.jsonl"), cursor, held)?,
            num_shown: 0,
        })
    }

    /// Returns how many samples were bad, and how many were longer than a pack.
    pub fn counts(&self) -> [u64; 2] {
        [self.bad.len(), self.too_long.len()]
    }

    /// Lists a sample, and shows it if it is one of the first of its kind.
    pub fn add(&mut self, sample: &SkippedSample, console: &Console) {
        let list = if sample.too_long { &mut self.too_long } else { &mut self.bad };
        let listed = list.append(sample);
        if !sample.too_long {
            self.show(sample, console);
        } else if self.too_long.len() == 1 {
            let (source, reason, path) = (&sample.source, &sample.reason, self.too_long.path().display());
            console.line(&format!("skipped {source}: {reason}; such samples are listed in {path}"));
        }
        if let Err(error) = listed {
            console.line(&format!("warning: {error}"));
        }
    }

    fn show(&mut self, sample: &SkippedSample, console: &Console) {
        self.num_shown += 1;
        if self.num_shown <= MAX_SHOWN {
            console.line(&format!("skipped {}: {}", sample.source, sample.reason));
        } else if self.num_shown == MAX_SHOWN + 1 {
            console.line(&format!("more samples are skipped: see {}", self.bad.path().display()));
        }
    }
}
