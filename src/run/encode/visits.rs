//! The samples whose features a run will need.

use loongforge_core::config::{PackMode, RunConfig};
use loongforge_core::data::tools::Share;
use loongforge_core::message::SampleId;
use loongforge_core::schedule::EvaluationSpec;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A sample that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    Train(SampleId),
    HeldOut(SampleId),
}

/// The visits of a run, first those of training: they end with the run's last sample, and bad ones do not count.
pub struct Visits {
    /// Good samples of training.
    wanted: u64,
    /// Positions beyond which nothing is looked for.
    most: u64,
    held_out: Vec<SampleId>,
    share: Share,
    /// Packs are not known: one epoch is read.
    is_one_epoch: bool,
    position: AtomicU64,
    num_bad: AtomicU64,
    next_held_out: AtomicU64,
}

impl Visits {
    /// `len`: samples of an epoch.
    pub fn new(config: &RunConfig, len: u64, evaluation: Option<&EvaluationSpec>, share: Share) -> Self {
        // Of packs that are made first the samples are read here.
        let is_one_epoch = config.data.pack.mode != PackMode::Step;
        let wanted = match is_one_epoch {
            true => config.data.pack.samples.unwrap_or(len),
            false => config.train.num_steps() * config.train.global_batch_size as u64,
        };
        let passes = evaluation.into_iter().flat_map(|evaluation| &evaluation.sets).flat_map(|set| &set.passes);
        let ids = passes.flat_map(|pass| (0..pass.num_samples).map(|index| SampleId::held_out(pass.stream, index)));
        let mut held_out: Vec<SampleId> = ids.collect();
        held_out.sort_unstable();
        held_out.dedup();
        Self {
            wanted,
            // An epoch in which nothing is good has no end.
            most: if is_one_epoch { wanted } else { 2 * wanted + len },
            held_out,
            share,
            is_one_epoch,
            position: AtomicU64::new(0),
            num_bad: AtomicU64::new(0),
            next_held_out: AtomicU64::new(0),
        }
    }

    /// Returns the number of visits of all shares, as long as no sample is bad.
    pub fn len(&self) -> u64 {
        self.wanted + self.held_out.len() as u64
    }

    /// Returns the next visit. Visits of training are everybody's: see [`Visits::is_own`].
    pub fn next(&self) -> Option<Visit> {
        // A position that is not wanted yet is left: one that is being read may turn out to be bad.
        let wanted = |position: u64| {
            let good = position.saturating_sub(self.num_bad.load(Relaxed));
            (good < self.wanted && position < self.most).then_some(position + 1)
        };
        if let Ok(position) = self.position.fetch_update(Relaxed, Relaxed, wanted) {
            return Some(Visit::Train(SampleId(position)));
        }
        let Share { index, num } = self.share;
        let at = self.next_held_out.fetch_add(1, Relaxed) * num + index;
        self.held_out.get(at as usize).copied().map(Visit::HeldOut)
    }

    /// Returns whether a sample is of this share, in every epoch: `set` is the number of its data set, `index` its own there.
    pub fn is_own(&self, set: usize, index: u64) -> bool {
        (set as u64 + index) % self.share.num == self.share.index
    }

    /// One of training was bad: the run takes another in its place.
    pub fn bad(&self) {
        self.num_bad.fetch_add(1, Relaxed);
    }

    /// Returns a note for the user about the visits, where there is something to say.
    pub fn note(&self) -> Option<String> {
        self.is_one_epoch.then(|| {
            "data.pack.mode is not step: the number of samples that the run reads is not known in advance, so one epoch is encoded"
                .to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_samples_are_made_up_for_and_each_sample_is_of_one_share() {
        let visits = |share| Visits {
            wanted: 5,
            most: 100,
            held_out: (0..3).map(|index| SampleId::held_out(0, index)).collect(),
            share,
            is_one_epoch: false,
            position: AtomicU64::new(0),
            num_bad: AtomicU64::new(0),
            next_held_out: AtomicU64::new(0),
        };
        let all = |visits: &Visits| std::iter::from_fn(|| visits.next()).collect::<Vec<_>>();
        let whole = all(&visits(Share::WHOLE));
        assert_eq!((whole.len(), whole[4]), (8, Visit::Train(SampleId(4))));
        let parts = [0, 1].map(|index| visits(Share { index, num: 2 }));
        let held_out = parts.iter().flat_map(|part| all(part).split_off(5));
        assert_eq!(held_out.count(), 3);
        assert!((0..9).all(|index| parts.iter().filter(|part| part.is_own(1, index)).count() == 1));
        let bad = visits(Share::WHOLE);
        bad.next();
        bad.bad();
        assert_eq!(all(&bad).iter().filter(|visit| matches!(visit, Visit::Train(_))).count(), 5);
        // Found to be bad by one thread when another has gone on.
        let late = visits(Share::WHOLE);
        let first: Vec<Visit> = std::iter::from_fn(|| late.next()).take(6).collect();
        assert_eq!(first[4..], [Visit::Train(SampleId(4)), Visit::HeldOut(SampleId::held_out(0, 0))]);
        late.bad();
        assert_eq!(late.next(), Some(Visit::Train(SampleId(5))));
    }
}
