//! Forms global batches of a number of samples, or of packs of a packed stream.

use super::CoordinatorSpec;
use crate::message::{SampleId, SampleMeta};
use crate::schedule::{Batch, PlanError, StreamPacker};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ops::Range;

/// Number of positions of a packed stream that are requested at once.
const WINDOW: std::ops::RangeInclusive<usize> = 64..=512;

#[derive(Serialize, Deserialize)]
pub struct Batches {
    /// Samples, or packs, per batch.
    size: usize,
    forming: Forming,
    ready: VecDeque<Formed>,
}

/// One step's batch, and the state of the stream after it.
#[derive(Serialize, Deserialize)]
pub struct Formed {
    pub batch: Batch,
    /// First position that is not taken.
    pub cursor: SampleId,
    /// Positions before it that are not yet in a batch, in the order in which they were taken.
    pub held: Vec<SampleId>,
}

#[derive(Serialize, Deserialize)]
enum Forming {
    Samples(Vec<SampleMeta>),
    Packs {
        /// One packer per foundation pool, with the routes that the pool computes: a pack has samples of one pool.
        packers: Vec<(Range<u32>, StreamPacker)>,
        look_ahead: usize,
        packs: Vec<Vec<SampleMeta>>,
        num_packs: usize,
        num_packed: usize,
    },
}

impl Batches {
    /// Forms batches of `global_batch_size` samples, or of as many packs if a stream is packed.
    pub fn new(spec: &CoordinatorSpec) -> Self {
        let forming = match spec.look_ahead {
            None => Forming::Samples(Vec::new()),
            Some(look_ahead) => Forming::Packs {
                packers: spec
                    .plan
                    .foundations
                    .iter()
                    .map(|pool| (pool.routes.clone(), StreamPacker::new(spec.plan.pack, look_ahead)))
                    .collect(),
                look_ahead,
                packs: Vec::new(),
                num_packs: 0,
                num_packed: 0,
            },
        };
        Self { size: spec.global_batch_size, forming, ready: VecDeque::new() }
    }

    /// Returns the number of samples still to be taken until `num_batches` are ready, as far as known.
    pub fn num_missing(&self, num_batches: usize) -> usize {
        let wanted = num_batches.saturating_sub(self.ready.len()) * self.size;
        match &self.forming {
            Forming::Samples(samples) => wanted.saturating_sub(samples.len()),
            Forming::Packs { packers, look_ahead, packs, .. } => match wanted.saturating_sub(packs.len()) {
                0 => 0,
                missing => {
                    let to_hold = packers.iter().map(|(_, packer)| look_ahead.saturating_sub(packer.num_held()));
                    to_hold.sum::<usize>() + missing * self.samples_per_pack()
                }
            },
        }
    }

    /// Returns the maximum number of positions in a window.
    pub fn window_len(&self) -> usize {
        match self.forming {
            Forming::Samples(_) => self.size,
            Forming::Packs { .. } => (self.size * self.samples_per_pack()).clamp(*WINDOW.start(), *WINDOW.end()),
        }
    }

    /// Takes the next sample of the stream; `cursor` is the first position after it that is not taken.
    ///
    /// # Errors
    /// Fails if the sample fits in no pack.
    pub fn push(&mut self, sample: SampleMeta, cursor: SampleId) -> Result<(), String> {
        self.push_again(sample, cursor, &VecDeque::new())
    }

    /// Works like [`Batches::push`] for a sample that a checkpoint held back; `waiting` are those held back that are not taken again yet.
    ///
    /// # Errors
    /// Fails as [`Batches::push`] does.
    pub fn push_again(
        &mut self,
        sample: SampleMeta,
        cursor: SampleId,
        waiting: &VecDeque<SampleId>,
    ) -> Result<(), String> {
        match &mut self.forming {
            Forming::Samples(samples) => {
                samples.push(sample);
                if samples.len() == self.size {
                    let batch = Batch::Samples(std::mem::take(samples));
                    self.ready.push_back(Formed { batch, cursor, held: waiting.iter().copied().collect() });
                }
            }
            Forming::Packs { packers, packs, num_packs, num_packed, .. } => {
                let at = packers.iter().position(|(routes, _)| routes.contains(&sample.route));
                let no_pool = || PlanError::NoFoundation { sample: sample.id, route: sample.route }.to_string();
                let at = at.ok_or_else(no_pool)?;
                packers[at].1.push(sample).map_err(|error| error.to_string())?;
                while let Some(pack) = packers[at].1.pop() {
                    *num_packs += 1;
                    *num_packed += pack.len();
                    packs.push(pack);
                    if packs.len() == self.size {
                        let batch = Batch::Packs(std::mem::take(packs));
                        // Each packer's are in the order of arrival, which is that of the stream.
                        let held = packers.iter().flat_map(|(_, packer)| packer.held().map(|sample| sample.id));
                        let mut held: Vec<SampleId> = held.chain(waiting.iter().copied()).collect();
                        held.sort_unstable();
                        self.ready.push_back(Formed { batch, cursor, held });
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the oldest complete batch.
    pub fn pop(&mut self) -> Option<Formed> {
        self.ready.pop_front()
    }

    /// Returns the mean so far, which affects only how far samples are read ahead.
    fn samples_per_pack(&self) -> usize {
        match self.forming {
            Forming::Packs { num_packs, num_packed, .. } if num_packs > 0 => num_packed.div_ceil(num_packs),
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::PackLimits;

    /// A run may go on with a shorter look-ahead, or with batches of samples: then batches are formed before all samples that its
    /// checkpoint held back are taken again.
    #[test]
    fn samples_that_wait_to_be_taken_again_stay_held() {
        let packers = vec![(0..1, StreamPacker::new(PackLimits::tokens(10), 2))];
        let packs = Forming::Packs { packers, look_ahead: 2, packs: Vec::new(), num_packs: 0, num_packed: 0 };
        for forming in [Forming::Samples(Vec::new()), packs] {
            let mut batches = Batches { size: 2, forming, ready: VecDeque::new() };
            let mut waiting: VecDeque<SampleId> = (2..7).map(SampleId).collect();
            let formed = loop {
                let sample = SampleMeta::of_tokens(waiting.pop_front().unwrap(), 10, 9);
                batches.push_again(sample, SampleId(9), &waiting).unwrap();
                if let Some(formed) = batches.pop() {
                    break formed;
                }
            };
            assert_eq!((formed.cursor, formed.held), (SampleId(9), [4, 5, 6].map(SampleId).to_vec()));
        }
    }
}
