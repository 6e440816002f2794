//! Packs a stream of which only a window is visible: samples are held back, and packs are made from them.

use super::length_set::LengthSet;
use super::limits::{Load, PackLimits, SampleSize, TooLarge};
use crate::message::SampleMeta;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Makes packs from the oldest samples, and fills each with those held samples that close its gap.
///
/// # Contract
/// 1. Every sample that was taken comes out in exactly one pack, whole; within a pack in the order of arrival.
/// 2. No pack exceeds a limit.
/// 3. A pack comes out only while `look_ahead` samples are held, or after [`finish`](Self::finish).
/// 4. Each pack holds the oldest sample: a sample waits for fewer than `look_ahead` packs after its arrival.
/// 5. What comes is a function of the held samples, in their order, and of what is pushed: a packer to which the held
///    samples of another were pushed goes on as the other does.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct StreamPacker {
    limits: PackLimits,
    look_ahead: usize,
    finished: bool,
    /// Held samples by order of arrival.
    held: BTreeMap<u64, SampleMeta>,
    num_pushed: u64,
    /// Lengths that are held, and who has them, oldest first.
    lengths: LengthSet,
    by_length: BTreeMap<u32, VecDeque<u64>>,
    num_tokens: u64,
}

/// A packer as it is written down: what is held is its whole state.
#[derive(Serialize, Deserialize)]
struct Written {
    limits: PackLimits,
    look_ahead: usize,
    finished: bool,
    held: Vec<SampleMeta>,
}

impl From<StreamPacker> for Written {
    fn from(packer: StreamPacker) -> Self {
        let StreamPacker { limits, look_ahead, finished, held, .. } = packer;
        Self { limits, look_ahead, finished, held: held.into_values().collect() }
    }
}

impl From<Written> for StreamPacker {
    fn from(Written { limits, look_ahead, finished, held }: Written) -> Self {
        let mut packer = Self { finished, ..Self::new(limits, look_ahead) };
        held.into_iter().for_each(|sample| packer.hold(sample));
        packer
    }
}

/// Means of the held lengths that are left open for the search to close.
const OPEN_MEANS: u64 = 3;
/// Samples that are tried oldest first, in multiples of those that fit a pack on average.
const MAX_PASSED: usize = 4;
/// Samples that close a gap at most, and lengths that the search tries for each of them.
const CLOSERS: usize = 3;
const TRIES: [usize; CLOSERS] = [1, 64, 12];
/// Samples of one length that are asked whether the other limits admit them.
const MAX_TWINS: usize = 4;

impl StreamPacker {
    /// Creates a packer; `look_ahead`: number of samples held before a pack comes out (at least 1).
    pub fn new(limits: PackLimits, look_ahead: usize) -> Self {
        Self {
            limits,
            look_ahead: look_ahead.max(1),
            finished: false,
            held: BTreeMap::new(),
            num_pushed: 0,
            lengths: LengthSet::new(limits.max_tokens),
            by_length: BTreeMap::new(),
            num_tokens: 0,
        }
    }

    /// Takes one sample. Pop all ready packs before pushing the next.
    ///
    /// # Errors
    /// Fails if the sample fits in no pack; it is not taken.
    pub fn push(&mut self, sample: SampleMeta) -> Result<(), TooLarge> {
        self.limits.check(sample.id, SampleSize::of(&sample))?;
        self.hold(sample);
        Ok(())
    }

    fn hold(&mut self, sample: SampleMeta) {
        let number = self.num_pushed;
        self.num_pushed += 1;
        self.num_tokens += u64::from(sample.num_tokens);
        self.lengths.insert(sample.num_tokens as usize);
        self.by_length.entry(sample.num_tokens).or_default().push_back(number);
        self.held.insert(number, sample);
    }

    /// Ends the stream: packs come out until nothing is held.
    pub fn finish(&mut self) {
        self.finished = true;
    }

    /// Returns the next pack, if enough samples are held or the stream has ended.
    pub fn pop(&mut self) -> Option<Vec<SampleMeta>> {
        if self.held.is_empty() || !(self.finished || self.held.len() >= self.look_ahead) {
            return None;
        }
        let mut pack = Chosen::default();
        self.oldest_first(&mut pack);
        self.close(&mut pack);
        pack.numbers.sort_unstable();
        Some(pack.numbers.into_iter().map(|number| self.take(number)).collect())
    }

    /// Returns the held samples in order of arrival: pushed to a new packer, they continue from here.
    pub fn held(&self) -> impl Iterator<Item = &SampleMeta> {
        self.held.values()
    }

    /// Returns the number of samples that are in no pack yet.
    pub fn num_held(&self) -> usize {
        self.held.len()
    }

    /// Samples in the order of arrival, until the gap is what a few samples close exactly: packs look like the stream.
    fn oldest_first(&self, pack: &mut Chosen) {
        let mean = self.num_tokens / self.held.len() as u64;
        let open = (OPEN_MEANS * mean) as usize;
        let max_passed = MAX_PASSED * (self.limits.max_tokens as u64 / mean.max(1)) as usize + MAX_PASSED;
        for (&number, sample) in self.held.iter().take(max_passed) {
            let is_first = pack.numbers.is_empty();
            if !is_first && pack.load.tokens + open >= self.limits.max_tokens {
                break;
            }
            let load = pack.load.with(SampleSize::of(sample));
            if load.fits(&self.limits) {
                pack.numbers.push(number);
                pack.load = load;
            }
        }
    }

    /// Closes the gap with the few samples that leave least of it, again while any fits.
    fn close(&self, pack: &mut Chosen) {
        loop {
            let best = self.closest(pack, CLOSERS, self.limits.max_tokens);
            if best.numbers.len() == pack.numbers.len() {
                return;
            }
            *pack = best;
        }
    }

    /// Returns the fullest pack that up to `count` more samples, none longer than `longest`, make of this one.
    fn closest(&self, pack: &Chosen, count: usize, longest: usize) -> Chosen {
        let mut best = pack.clone();
        let room = self.limits.max_tokens - pack.load.tokens;
        let mut next = self.lengths.at_most(room.min(longest));
        let mut tries = TRIES[count - 1];
        while let Some(length) = next {
            // Not even `count` samples of this length would be better.
            if tries == 0 || pack.load.tokens + count * length <= best.load.tokens && length > 0 {
                break;
            }
            if let Some(with) = self.pick(pack, length) {
                tries -= 1;
                let with = if count > 1 { self.closest(&with, count - 1, length) } else { with };
                if with.load.tokens > best.load.tokens || with.numbers.len() > best.numbers.len() && length == 0 {
                    best = with;
                }
                if best.load.tokens == self.limits.max_tokens {
                    break;
                }
            }
            next = length.checked_sub(1).and_then(|below| self.lengths.at_most(below));
        }
        best
    }

    /// Returns the oldest sample of that length which the pack does not have and all limits admit.
    fn pick(&self, pack: &Chosen, length: usize) -> Option<Chosen> {
        let twins = self.by_length[&(length as u32)].iter();
        let free = twins.filter(|number| !pack.numbers.contains(number)).take(MAX_TWINS);
        free.map(|&number| (number, pack.load.with(SampleSize::of(&self.held[&number]))))
            .find(|(_, load)| load.fits(&self.limits))
            .map(|(number, load)| {
                let mut with = pack.clone();
                with.numbers.push(number);
                with.load = load;
                with
            })
    }

    fn take(&mut self, number: u64) -> SampleMeta {
        let sample = self.held.remove(&number).expect("a chosen sample is held");
        let twins = self.by_length.get_mut(&sample.num_tokens).expect("its length is known");
        twins.retain(|&other| other != number);
        if twins.is_empty() {
            self.by_length.remove(&sample.num_tokens);
            self.lengths.remove(sample.num_tokens as usize);
        }
        self.num_tokens -= u64::from(sample.num_tokens);
        sample
    }
}

/// A pack in the making.
#[derive(Clone, Debug, Default)]
struct Chosen {
    numbers: Vec<u64>,
    load: Load,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Grid, ItemMeta, SampleId, Tower};
    use proptest::prelude::*;

    fn sample(id: usize, num_tokens: u32, features: &[u32]) -> SampleMeta {
        let item =
            |&num_features: &u32| ItemMeta { tower: Tower::Vision, grid: Grid { t: 1, h: 2, w: 2 }, num_features };
        let items = features.iter().map(item).collect();
        SampleMeta { items, ..SampleMeta::of_tokens(SampleId(id as u64), num_tokens, 1) }
    }

    fn samples() -> impl Strategy<Value = Vec<SampleMeta>> {
        let row = (0_u32..=140, prop::collection::vec(1_u32..10, 0..4));
        prop::collection::vec(row, 0..200).prop_map(|rows| {
            let of = |(id, (tokens, features)): (usize, &(u32, Vec<u32>))| sample(id, *tokens, features);
            rows.iter().enumerate().map(of).collect()
        })
    }

    fn limits() -> impl Strategy<Value = PackLimits> {
        (140_usize..300, 1_usize..8, 3_usize..8, 30_usize..60).prop_map(
            |(max_tokens, max_samples, max_images, max_visual_tokens)| PackLimits {
                max_tokens,
                max_samples,
                max_images,
                max_visual_tokens,
            },
        )
    }

    /// Returns all packs of a stream; in between, whenever `swap` says so, the packer is replaced by one made from its state.
    fn all(
        samples: &[SampleMeta],
        limits: PackLimits,
        look_ahead: usize,
        swap: impl Fn(usize) -> bool,
    ) -> Vec<Vec<SampleMeta>> {
        let mut packer = StreamPacker::new(limits, look_ahead);
        let mut packs = Vec::new();
        for (index, sample) in samples.iter().enumerate() {
            packer.push(sample.clone()).unwrap();
            if swap(index) {
                let mut other = StreamPacker::new(limits, look_ahead);
                packer.held().for_each(|sample| other.push(sample.clone()).unwrap());
                packer = other;
            }
            assert!(packer.num_held() <= look_ahead.max(1));
            packs.extend(std::iter::from_fn(|| packer.pop()));
        }
        packer.finish();
        packs.extend(std::iter::from_fn(|| packer.pop()));
        assert_eq!(packer.num_held(), 0);
        packs
    }

    proptest! {
        #[test]
        fn every_sample_once_whole_and_within_limits(
            samples in samples(),
            limits in limits(),
            look_ahead in 0_usize..40,
        ) {
            let packs = all(&samples, limits, look_ahead, |_| false);
            let mut ids: Vec<SampleId> = packs.iter().flatten().map(|sample| sample.id).collect();
            for pack in &packs {
                prop_assert!(pack.is_sorted_by_key(|sample| sample.id));
                let load = pack.iter().fold(Load::default(), |load, sample| load.with(SampleSize::of(sample)));
                prop_assert!(load.fits(&limits), "{load:?}");
            }
            ids.sort_unstable();
            prop_assert_eq!(ids, samples.iter().map(|sample| sample.id).collect::<Vec<_>>());
            let joined: Vec<_> = packs.iter().flatten().cloned().collect();
            prop_assert!(joined.iter().all(|sample| samples[sample.id.0 as usize] == *sample));
        }

        #[test]
        fn no_sample_waits_for_long(samples in samples(), limits in limits(), look_ahead in 1_usize..40) {
            let mut packer = StreamPacker::new(limits, look_ahead);
            let (mut num_packs, mut arrived) = (0, std::collections::BTreeMap::new());
            for sample in &samples {
                packer.push(sample.clone()).unwrap();
                arrived.insert(sample.id, num_packs);
                while let Some(pack) = packer.pop() {
                    for sample in pack {
                        prop_assert!(num_packs - arrived[&sample.id] < look_ahead);
                    }
                    num_packs += 1;
                }
            }
        }

        #[test]
        fn the_held_samples_are_the_whole_state(samples in samples(), limits in limits(), every in 1_usize..20) {
            let plain = all(&samples, limits, 20, |_| false);
            prop_assert_eq!(all(&samples, limits, 20, |index| index % every == 0), plain);
        }
    }

    #[test]
    fn the_gap_is_closed_exactly_where_that_is_possible() {
        let lengths = [50, 7, 31, 12, 90, 77, 30, 8];
        let samples: Vec<_> = lengths.iter().enumerate().map(|(id, &length)| sample(id, length, &[])).collect();
        let packs = all(&samples, PackLimits::tokens(100), 8, |_| false);
        // 50 + 12 + 30 + 8
        let first: Vec<u32> = packs[0].iter().map(|sample| sample.num_tokens).collect();
        assert_eq!(first.iter().sum::<u32>(), 100, "{first:?}");
    }

    #[test]
    fn what_fits_no_pack_is_given_back() {
        let limits = PackLimits { max_images: 1, ..PackLimits::tokens(100) };
        let mut packer = StreamPacker::new(limits, 4);
        let error = packer.push(sample(7, 101, &[])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "sample 7 has 101 tokens, but a pack holds only 100; raise `data.pack.max_tokens`"
        );
        assert!(packer.push(sample(7, 50, &[1, 1])).unwrap_err().to_string().contains("`data.pack.max_images`"));
        assert_eq!(packer.num_held(), 0);
        packer.finish();
        assert!(packer.pop().is_none());
    }
}
