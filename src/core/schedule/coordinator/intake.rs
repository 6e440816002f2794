//! Samples on their way from data actors to global batches: requests windows, and puts answers in stream order.

use super::CoordinatorSpec;
use super::batches::{Batches, Formed};
use crate::message::{Command, SampleId, SampleMeta, SkippedSample};
use crate::schedule::Skipped;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// Maximum number of positions per window that are read again.
const MAX_AGAIN: usize = 512;

pub(super) type Measured = Result<SampleMeta, SkippedSample>;

#[derive(Serialize, Deserialize)]
pub(super) struct Intake {
    num_data: u64,
    max_windows: usize,
    /// Positions before the first cursor that the checkpoint held back: the stream begins with them.
    held: VecDeque<SampleId>,
    /// Held positions that are not requested yet.
    to_read_again: VecDeque<SampleId>,
    /// First position that is not taken.
    cursor: u64,
    /// First position that is not requested.
    requested: u64,
    /// Windows that each data actor has not answered, oldest first.
    unanswered: Vec<VecDeque<Window>>,
    /// Answers that are not taken, from `cursor` on.
    answered: VecDeque<Option<Measured>>,
    /// Answers to positions before `cursor`.
    reread: BTreeMap<u64, Measured>,
    batches: Batches,
    skipped: Skipped,
}

/// Positions requested from all data actors, from each its share.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Window {
    Next(Range<u64>),
    /// Ascending.
    Again(Vec<SampleId>),
}

impl Window {
    /// Returns the command that requests the window.
    pub fn command(&self) -> Command {
        match self {
            Self::Next(range) => Command::Read { from: SampleId(range.start), until: SampleId(range.end) },
            Self::Again(positions) => Command::ReadAgain { positions: positions.clone() },
        }
    }

    fn contains(&self, position: SampleId) -> bool {
        match self {
            Self::Next(range) => range.contains(&position.0),
            Self::Again(positions) => positions.binary_search(&position).is_ok(),
        }
    }

    fn share(&self, index: u64, num_data: u64) -> usize {
        // Those of the share below a position.
        let below = |position: u64| (position + num_data - 1 - index) / num_data;
        match self {
            Self::Next(range) => (below(range.end) - below(range.start)) as usize,
            Self::Again(positions) => positions.iter().filter(|position| position.0 % num_data == index).count(),
        }
    }
}

impl Intake {
    /// Begins at the position in the state; samples that it holds are read again first.
    pub fn new(spec: &CoordinatorSpec) -> Self {
        let held: VecDeque<SampleId> = spec.state.held.iter().copied().collect();
        Self {
            num_data: u64::from(spec.pools.data),
            max_windows: spec.max_windows(),
            to_read_again: held.clone(),
            held,
            cursor: spec.state.cursor.0,
            requested: spec.state.cursor.0,
            unanswered: vec![VecDeque::new(); spec.pools.data as usize],
            answered: VecDeque::new(),
            reread: BTreeMap::new(),
            batches: Batches::new(spec),
            skipped: Skipped::new(spec.bad_samples, spec.too_long),
        }
    }

    /// Returns the next window to request from all data actors, so that `num_batches` are ready or on their way.
    pub fn request(&mut self, num_batches: usize) -> Option<Window> {
        let open = self.unanswered.iter().map(VecDeque::len).max().unwrap_or(0);
        if open >= self.max_windows || num_batches == 0 {
            return None;
        }
        let window = if self.to_read_again.is_empty() {
            let wanted = self.batches.num_missing(num_batches);
            let on_the_way = (self.requested - self.cursor) as usize + self.held.len();
            if on_the_way >= wanted {
                return None;
            }
            let len = (wanted - on_the_way).min(self.batches.window_len());
            let window = self.requested..self.requested + len as u64;
            self.requested = window.end;
            Window::Next(window)
        } else {
            let len = self.to_read_again.len().min(MAX_AGAIN);
            Window::Again(self.to_read_again.drain(..len).collect())
        };
        self.unanswered.iter_mut().for_each(|windows| windows.push_back(window.clone()));
        Some(window)
    }

    /// Requests positions again that were taken before; ascending. Their answers wait for [`Intake::take_again`].
    pub fn read_again(&mut self, positions: Vec<SampleId>) -> Window {
        let window = Window::Again(positions);
        self.unanswered.iter_mut().for_each(|windows| windows.push_back(window.clone()));
        window
    }

    /// Returns whether all of these are good, once they are answered.
    pub fn take_again(&mut self, positions: &[SampleId]) -> Option<bool> {
        self.take_answers(positions).map(|answers| answers.iter().all(Result::is_ok))
    }

    /// Returns the answers to positions requested by [`Intake::read_again`], in order, once all have arrived.
    pub fn take_answers(&mut self, positions: &[SampleId]) -> Option<Vec<Measured>> {
        let is_there = positions.iter().all(|position| self.reread.contains_key(&position.0));
        is_there.then(|| positions.iter().filter_map(|position| self.reread.remove(&position.0)).collect())
    }

    /// Takes the answer of data actor `index` to its oldest window.
    ///
    /// # Errors
    /// Fails if the answer does not match that window.
    pub fn measured(&mut self, index: u32, samples: Vec<SampleMeta>, bad: Vec<SkippedSample>) -> Result<(), String> {
        let window = self.unanswered[index as usize].pop_front().ok_or("measured samples that were not requested")?;
        let share = window.share(u64::from(index), self.num_data);
        let answers = samples
            .into_iter()
            .map(|sample| (sample.id, Ok(sample)))
            .chain(bad.into_iter().map(|bad| (bad.id, Err(bad))));
        let mut num_answers = 0;
        for (position, answer) in answers {
            let asked = window.contains(position) && position.0 % self.num_data == u64::from(index);
            let whole = answer.as_ref().map_or(true, |sample: &SampleMeta| {
                sample.document_lens().iter().map(|&len| u64::from(len)).sum::<u64>() == u64::from(sample.num_tokens)
            });
            if !whole {
                return Err(format!("measured position {position}, whose documents do not add up to its length"));
            }
            if !asked || self.keep(position.0, answer).is_some() {
                return Err(format!("measured position {position} twice or outside its share of {window:?}"));
            }
            num_answers += 1;
        }
        if num_answers != share {
            return Err(format!("measured {num_answers} of the {share} samples of its share of {window:?}"));
        }
        Ok(())
    }

    /// Stores an answer until its turn, and returns the previous one.
    fn keep(&mut self, position: u64, answer: Measured) -> Option<Measured> {
        let ahead = position.checked_sub(self.cursor).filter(|_| SampleId(position).as_held_out().is_none());
        let Some(ahead) = ahead else { return self.reread.insert(position, answer) };
        let ahead = ahead as usize;
        if ahead >= self.answered.len() {
            self.answered.resize_with(ahead + 1, || None);
        }
        self.answered[ahead].replace(answer)
    }

    /// Moves complete samples in stream order into batches; returns the skipped samples.
    ///
    /// # Errors
    /// Fails if there are too many bad samples, or one is too long where that is an error.
    pub fn consume(&mut self) -> (Vec<SkippedSample>, Result<(), String>) {
        let mut skipped = Vec::new();
        let verdict = loop {
            match self.take_next(&mut skipped) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        (skipped, verdict)
    }

    /// Takes the next sample of the stream, if it has arrived.
    fn take_next(&mut self, skipped: &mut Vec<SkippedSample>) -> Result<bool, String> {
        if let Some(&position) = self.held.front() {
            let Some(answer) = self.reread.remove(&position.0) else { return Ok(false) };
            self.held.pop_front();
            match answer {
                Ok(sample) => {
                    self.skipped.used();
                    self.batches.push_again(sample, SampleId(self.cursor), &self.held)?;
                }
                Err(bad) => {
                    let reason = format!("was valid when the checkpoint was written, but no longer is: {}", bad.reason);
                    self.skip(SkippedSample { reason, ..bad }, skipped)?;
                }
            }
            return Ok(true);
        }
        let Some(Some(answer)) = self.answered.pop_front_if(|answer| answer.is_some()) else { return Ok(false) };
        self.cursor += 1;
        match answer {
            Ok(sample) => {
                self.skipped.used();
                self.batches.push(sample, SampleId(self.cursor))?;
            }
            Err(bad) => self.skip(bad, skipped)?,
        }
        Ok(true)
    }

    /// Counts a sample that no batch has, and adds it to `skipped`.
    fn skip(&mut self, bad: SkippedSample, skipped: &mut Vec<SkippedSample>) -> Result<(), String> {
        let verdict = if bad.too_long { self.skipped.too_long(&bad) } else { self.skipped.bad(&bad) };
        skipped.push(bad);
        verdict
    }

    /// Counts a sample that was good and turned out to be bad.
    ///
    /// # Errors
    /// Fails if there are too many bad samples.
    pub fn turned_bad(&mut self, bad: &SkippedSample) -> Result<(), String> {
        self.skipped.turned_bad(bad)
    }

    /// Returns the samples of the next step, once there are enough.
    pub fn next_batch(&mut self) -> Option<Formed> {
        self.batches.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::coordinator::SchedulerState;
    use crate::schedule::coordinator::trust_tests::spec;

    /// Data may be others now, as `data.on_change` accepts them, or limits: no checkpoint could be gone on from.
    #[test]
    fn a_held_sample_that_is_no_longer_good_is_skipped_like_any_other() {
        let held = [3, 4, 6].map(SampleId);
        let state = SchedulerState { held: held.to_vec(), ..SchedulerState::at(SampleId(9)) };
        let mut intake = Intake::new(&CoordinatorSpec { state, ..spec() });
        assert!(matches!(intake.request(1), Some(Window::Again(positions)) if positions == held));
        let good = [3, 6].map(|id| SampleMeta::of_tokens(SampleId(id), 10, 9)).to_vec();
        let (source, reason) = ("a.jsonl:5".to_owned(), "no picture".to_owned());
        let bad = SkippedSample { id: SampleId(4), source, reason, too_long: false };
        intake.measured(0, good, vec![bad]).unwrap();
        let (skipped, verdict) = intake.consume();
        assert_eq!((verdict, intake.held.len()), (Ok(()), 0));
        let said: Vec<String> = skipped.iter().map(SkippedSample::to_string).collect();
        assert_eq!(said, ["a.jsonl:5: was valid when the checkpoint was written, but no longer is: no picture"]);
    }

    /// Bad ones alone would be all that were seen, one behind another.
    #[test]
    fn held_samples_that_are_still_good_count_as_used() {
        let held: Vec<SampleId> = (0..300).map(SampleId).collect();
        let state = SchedulerState { held: held.clone(), ..SchedulerState::at(SampleId(300)) };
        let mut intake = Intake::new(&CoordinatorSpec { state, ..spec() });
        assert!(matches!(intake.request(1), Some(Window::Again(positions)) if positions == held));
        let (bad, good): (Vec<SampleId>, Vec<SampleId>) = held.into_iter().partition(|id| id.0 % 3 == 0);
        let good = good.into_iter().map(|id| SampleMeta::of_tokens(id, 10, 9)).collect();
        let skip = |id| SkippedSample { id, source: "a:5".into(), reason: "no picture".into(), too_long: false };
        intake.measured(0, good, bad.into_iter().map(skip).collect()).unwrap();
        let (skipped, verdict) = intake.consume();
        assert_eq!((verdict, skipped.len()), (Ok(()), 100));
    }
}
