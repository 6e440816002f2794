//! Samples on their way from data actors to global batches: windows asked for, answers put in position order.

use super::CoordinatorSpec;
use crate::config::BadSamples;
use crate::message::{BadSample, SampleId, SampleMeta};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// Samples after which the fraction of bad ones means something.
const MIN_SEEN: u64 = 100;

pub(super) struct Intake {
    num_data: u64,
    batch_size: usize,
    max_windows: usize,
    policy: BadSamples,
    /// First position that is in no batch yet.
    cursor: u64,
    /// First position that nobody was asked for.
    requested: u64,
    /// Windows that each data actor has not answered, oldest first.
    unanswered: Vec<VecDeque<Range<u64>>>,
    /// Answers beyond the cursor.
    answered: BTreeMap<u64, Result<SampleMeta, BadSample>>,
    /// The batch being filled.
    forming: Vec<SampleMeta>,
    batches: VecDeque<Batch>,
    num_seen: u64,
    num_bad: u64,
    num_bad_in_row: usize,
}

/// Samples of one step, in position order.
pub(super) struct Batch {
    pub samples: Vec<SampleMeta>,
    /// First position after it.
    pub cursor: SampleId,
}

impl Intake {
    pub fn new(spec: &CoordinatorSpec) -> Self {
        Self {
            num_data: u64::from(spec.pools.data),
            batch_size: spec.global_batch_size,
            max_windows: spec.max_windows(),
            policy: spec.bad_samples,
            cursor: spec.cursor.0,
            requested: spec.cursor.0,
            unanswered: vec![VecDeque::new(); spec.pools.data as usize],
            answered: BTreeMap::new(),
            forming: Vec::new(),
            batches: VecDeque::new(),
            num_seen: 0,
            num_bad: 0,
            num_bad_in_row: 0,
        }
    }

    /// The next window to ask all data actors for, so that `num_batches` are at hand or on their way.
    pub fn request(&mut self, num_batches: usize) -> Option<Range<u64>> {
        let wanted = num_batches * self.batch_size;
        let on_the_way = (self.requested - self.cursor) as usize;
        let at_hand = self.batches.len() * self.batch_size + self.forming.len() + on_the_way;
        let open = self.unanswered.iter().map(VecDeque::len).max().unwrap_or(0);
        if at_hand >= wanted || open >= self.max_windows {
            return None;
        }
        let window = self.requested..self.requested + (wanted - at_hand).min(self.batch_size) as u64;
        self.requested = window.end;
        self.unanswered.iter_mut().for_each(|windows| windows.push_back(window.clone()));
        Some(window)
    }

    /// Takes the answer of data actor `index` to its oldest window.
    ///
    /// # Errors
    /// It is not an answer to that.
    pub fn measured(&mut self, index: u32, samples: Vec<SampleMeta>, bad: Vec<BadSample>) -> Result<(), String> {
        let window = self.unanswered[index as usize].pop_front().ok_or("measured samples that nobody asked for")?;
        let share = window.clone().filter(|position| position % self.num_data == u64::from(index)).count();
        let answers = samples
            .into_iter()
            .map(|sample| (sample.id, Ok(sample)))
            .chain(bad.into_iter().map(|bad| (bad.id, Err(bad))));
        let mut num_answers = 0;
        for (SampleId(position), answer) in answers {
            let asked = window.contains(&position) && position % self.num_data == u64::from(index);
            let whole = answer.as_ref().map_or(true, |sample: &SampleMeta| {
                sample.document_lens().iter().map(|&len| u64::from(len)).sum::<u64>() == u64::from(sample.num_tokens)
            });
            if !whole {
                return Err(format!("measured position {position}, whose documents are not as long as it is"));
            }
            if !asked || self.answered.insert(position, answer).is_some() {
                return Err(format!("measured position {position}, not once or not in its share of {window:?}"));
            }
            num_answers += 1;
        }
        if num_answers != share {
            return Err(format!("measured {num_answers} of the {share} samples of its share of {window:?}"));
        }
        Ok(())
    }

    /// Moves what is complete in position order into batches; returns the bad samples met.
    ///
    /// # Errors
    /// Too many bad samples.
    pub fn consume(&mut self) -> (Vec<BadSample>, Result<(), String>) {
        let mut skipped = Vec::new();
        while let Some(answer) = self.answered.remove(&self.cursor) {
            self.cursor += 1;
            self.num_seen += 1;
            match answer {
                Ok(sample) => {
                    self.num_bad_in_row = 0;
                    self.forming.push(sample);
                }
                Err(bad) => {
                    self.num_bad_in_row += 1;
                    self.num_bad += 1;
                    let verdict = self.judge(&bad);
                    skipped.push(bad);
                    if verdict.is_err() {
                        return (skipped, verdict);
                    }
                }
            }
            if self.forming.len() == self.batch_size {
                let samples = std::mem::take(&mut self.forming);
                self.batches.push_back(Batch { samples, cursor: SampleId(self.cursor) });
            }
        }
        (skipped, Ok(()))
    }

    pub fn next_batch(&mut self) -> Option<Batch> {
        self.batches.pop_front()
    }

    fn judge(&self, last: &BadSample) -> Result<(), String> {
        let BadSamples { max_fraction, max_consecutive } = self.policy;
        let (num_bad, num_seen) = (self.num_bad, self.num_seen);
        let last = format!("the last: {}: {}", last.source, last.reason);
        if self.num_bad_in_row > max_consecutive {
            let num_bad = self.num_bad_in_row;
            return Err(format!(
                "{num_bad} bad samples in a row, more than `data.on_bad_sample.max_consecutive` = {max_consecutive}; {last}"
            ));
        }
        if num_seen >= MIN_SEEN && num_bad as f64 > max_fraction * num_seen as f64 {
            return Err(format!(
                "{num_bad} of {num_seen} samples are bad, more than `data.on_bad_sample.max_fraction` = {max_fraction}; {last}"
            ));
        }
        Ok(())
    }
}
