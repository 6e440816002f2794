//! Packs a data set whose lengths are all known.

use super::best_fit::{BestFit, Run, best_fit_decreasing};
use super::limits::{PackLimits, SampleSize};
use std::collections::HashMap;

/// Marks a sample without a pack.
const NO_PACK: u32 = u32::MAX;

/// The pack of each sample. Packs are numbered by their first sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfflinePacks {
    pack_of: Vec<u32>,
    /// Number of tokens in each pack.
    pub num_tokens: Vec<u32>,
    /// Samples that fit in no pack and are left out.
    pub too_large: Vec<u32>,
}

/// Packs samples by best fit decreasing, within all limits. The time grows with the number of distinct sizes, which is about the
/// number of samples if all limits apply.
///
/// # Panics
/// There are 2³² samples or more, or a limit on tokens of 0.
pub fn pack_offline(sizes: &[SampleSize], limits: PackLimits) -> OfflinePacks {
    if limits.max_images == usize::MAX && limits.max_visual_tokens == usize::MAX {
        return assign(sizes.iter().map(|size| size.tokens), limits);
    }
    let mut kinds: Vec<(SampleSize, u64)> = Vec::new();
    let mut known: HashMap<SampleSize, u32> = HashMap::new();
    let kind_of = |&size: &SampleSize| {
        if !size.fits(&limits) {
            return NO_PACK;
        }
        let kind = *known.entry(size).or_insert_with(|| {
            kinds.push((size, 0));
            kinds.len() as u32 - 1
        });
        kinds[kind as usize].1 += 1;
        kind
    };
    let pack_of: Vec<u32> = sizes.iter().map(kind_of).collect();
    hand_out(pack_of, &best_fit_decreasing(&kinds, limits))
}

/// Works like [`pack_offline`] for text, where only lengths matter: two passes over memory.
///
/// # Panics
/// Panics as [`pack_offline`] does.
pub fn pack_lengths(lengths: &[u32], limits: PackLimits) -> OfflinePacks {
    assign(lengths.iter().copied(), limits)
}

fn assign(lengths: impl Iterator<Item = u32> + Clone, limits: PackLimits) -> OfflinePacks {
    let mut counts = vec![0_u64; limits.max_tokens + 1];
    for length in lengths.clone() {
        if let Some(count) = counts.get_mut(length as usize) {
            *count += 1;
        }
    }
    let size = |tokens: usize| SampleSize { tokens: tokens as u32, ..SampleSize::default() };
    let kinds: Vec<_> = counts.into_iter().enumerate().map(|(tokens, count)| (size(tokens), count)).collect();
    let found = best_fit_decreasing(&kinds, limits);
    let most = limits.max_tokens;
    hand_out(lengths.map(|length| if length as usize > most { NO_PACK } else { length }).collect(), &found)
}

/// Makes the kind of each sample its pack: the samples of a kind go to its runs in their order.
fn hand_out(mut pack_of: Vec<u32>, found: &BestFit) -> OfflinePacks {
    assert!(pack_of.len() < NO_PACK as usize, "samples are counted in 32 bits");
    let mut cursors: Vec<Cursor> = found.runs.iter().map(|runs| Cursor::new(runs)).collect();
    let tokens: Vec<u32> =
        found.packs.iter().flat_map(|&(tokens, packs)| std::iter::repeat_n(tokens, packs as usize)).collect();
    let mut numbers = vec![NO_PACK; tokens.len()];
    let mut num_tokens = Vec::with_capacity(tokens.len());
    let mut too_large = Vec::new();
    for (sample, slot) in pack_of.iter_mut().enumerate() {
        if *slot == NO_PACK {
            too_large.push(sample as u32);
            continue;
        }
        let kind = *slot as usize;
        let pack = cursors[kind].next(&found.runs[kind]) as usize;
        if numbers[pack] == NO_PACK {
            numbers[pack] = num_tokens.len() as u32;
            num_tokens.push(tokens[pack]);
        }
        *slot = numbers[pack];
    }
    OfflinePacks { pack_of, num_tokens, too_large }
}

/// The place where the next sample of a kind goes.
struct Cursor {
    pack: u32,
    /// Samples that this pack still takes.
    left: u32,
    /// Packs of the run after this one.
    packs_left: u32,
    per_pack: u32,
    next_run: u32,
}

impl Cursor {
    fn new(runs: &[Run]) -> Self {
        let mut cursor = Self { pack: 0, left: 0, packs_left: 0, per_pack: 0, next_run: 0 };
        cursor.open(runs);
        cursor
    }

    #[inline]
    fn next(&mut self, runs: &[Run]) -> u32 {
        if self.left == 0 {
            if self.packs_left == 0 {
                self.open(runs);
            } else {
                self.packs_left -= 1;
                self.pack += 1;
                self.left = self.per_pack;
            }
        }
        self.left -= 1;
        self.pack
    }

    fn open(&mut self, runs: &[Run]) {
        if let Some(run) = runs.get(self.next_run as usize) {
            let per_pack = run.per_pack;
            *self = Self {
                pack: run.first_pack,
                left: per_pack,
                packs_left: run.num_packs - 1,
                per_pack,
                next_run: self.next_run + 1,
            };
        }
    }
}

impl OfflinePacks {
    /// Returns the number of packs.
    pub fn num_packs(&self) -> usize {
        self.num_tokens.len()
    }

    /// Returns the pack of each sample; `None`: it fits in none.
    pub fn pack_of(&self) -> impl ExactSizeIterator<Item = Option<u32>> + '_ {
        self.pack_of.iter().map(|&pack| (pack != NO_PACK).then_some(pack))
    }

    /// Returns the samples of all packs, pack by pack and ascending within each, and where each pack begins (and the last ends).
    pub fn by_pack(&self) -> (Vec<u32>, Vec<u32>) {
        let mut starts = vec![0_u32; self.num_packs() + 1];
        self.pack_of().flatten().for_each(|pack| starts[pack as usize + 1] += 1);
        (1..starts.len()).for_each(|pack| starts[pack] += starts[pack - 1]);
        let mut next = starts.clone();
        let mut samples = vec![0; self.pack_of.len() - self.too_large.len()];
        for (sample, pack) in self.pack_of().enumerate() {
            if let Some(pack) = pack {
                let at = &mut next[pack as usize];
                samples[*at as usize] = sample as u32;
                *at += 1;
            }
        }
        (samples, starts)
    }

    /// Returns tokens divided by the capacity of all packs, where each pack has the smallest of several sizes that holds it. The
    /// largest size is the limit used for packing.
    pub fn fill(&self, sizes: &[usize]) -> f64 {
        let room = |tokens: u32| *sizes.iter().filter(|size| **size >= tokens as usize).min().expect("a size holds it");
        let total: u64 = self.num_tokens.iter().map(|&tokens| u64::from(tokens)).sum();
        total as f64 / self.num_tokens.iter().map(|&tokens| room(tokens) as u64).sum::<u64>().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::super::bound::least_packs;
    use super::super::limits::Load;
    use super::*;
    use proptest::prelude::*;
    use std::cmp::Reverse;

    fn sizes() -> impl Strategy<Value = Vec<SampleSize>> {
        let size = (0_u32..30, 0_u32..3, 0_u32..8);
        let size = size.prop_map(|(tokens, images, visual_tokens)| SampleSize { tokens, images, visual_tokens });
        prop::collection::vec(size, 0..120)
    }

    fn limits() -> impl Strategy<Value = PackLimits> {
        (20_usize..60, 1_usize..9, 1_usize..6, 5_usize..20).prop_map(
            |(max_tokens, max_samples, max_images, max_visual_tokens)| PackLimits {
                max_tokens,
                max_samples,
                max_images,
                max_visual_tokens,
            },
        )
    }

    /// Contents of the packs of best fit decreasing, one sample after the other.
    fn one_by_one(lengths: &[u32], max_tokens: u32) -> Vec<u32> {
        let mut sorted = lengths.to_vec();
        sorted.sort_unstable_by_key(|&length| Reverse(length));
        let mut packs: Vec<u32> = Vec::new();
        for length in sorted {
            match packs.iter_mut().filter(|used| **used + length <= max_tokens).max() {
                Some(used) => *used += length,
                None => packs.push(length),
            }
        }
        packs
    }

    /// Returns the least number of packs over every assignment.
    fn best_count(lengths: &[u32], max_tokens: u32, packs: &mut Vec<u32>) -> usize {
        let Some((&length, rest)) = lengths.split_first() else { return packs.len() };
        packs.push(length);
        let mut best = best_count(rest, max_tokens, packs);
        packs.pop();
        for at in 0..packs.len() {
            if packs[at] + length <= max_tokens {
                packs[at] += length;
                best = best.min(best_count(rest, max_tokens, packs));
                packs[at] -= length;
            }
        }
        best
    }

    proptest! {
        #[test]
        fn by_multiplicity_is_what_one_by_one_makes(lengths in prop::collection::vec(1_u32..=40, 0..150)) {
            let packs = pack_lengths(&lengths, PackLimits::tokens(40));
            let mut ours = packs.num_tokens.clone();
            let mut theirs = one_by_one(&lengths, 40);
            ours.sort_unstable();
            theirs.sort_unstable();
            prop_assert_eq!(ours, theirs);
        }

        #[test]
        fn every_sample_in_one_pack_within_all_limits(sizes in sizes(), limits in limits()) {
            let packs = pack_offline(&sizes, limits);
            let too_large: Vec<u32> =
                (0..sizes.len() as u32).filter(|&sample| !sizes[sample as usize].fits(&limits)).collect();
            prop_assert_eq!(&packs.too_large, &too_large);
            let (samples, starts) = packs.by_pack();
            let mut all = [samples.clone(), too_large].concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..sizes.len() as u32).collect::<Vec<_>>());
            let rows: Vec<&[u32]> =
                starts.windows(2).map(|range| &samples[range[0] as usize..range[1] as usize]).collect();
            prop_assert!(rows.iter().all(|row| !row.is_empty() && row.is_sorted()));
            prop_assert!(rows.is_sorted_by_key(|row| row[0]));
            let load = |rows: &[&[u32]]| {
                rows.concat().iter().fold(Load::default(), |load, &sample| load.with(sizes[sample as usize]))
            };
            for (at, row) in rows.iter().enumerate() {
                prop_assert!(load(&[row]).fits(&limits));
                prop_assert_eq!(load(&[row]).tokens, packs.num_tokens[at] as usize);
                // A pack is opened only for what fits in no other.
                for other in &rows[..at] {
                    prop_assert!(!load(&[row, other]).fits(&limits), "{row:?} and {other:?} are one pack");
                }
            }
        }

        #[test]
        fn few_packs_and_a_true_bound(lengths in prop::collection::vec(1_u32..=20, 1..8)) {
            let best = best_count(&lengths, 20, &mut Vec::new());
            let packs = pack_lengths(&lengths, PackLimits::tokens(20)).num_packs();
            prop_assert!(packs <= 11 * best / 9 + 1, "{packs} packs, best {best}");
            let mut counts = vec![0; 21];
            lengths.iter().for_each(|&length| counts[length as usize] += 1);
            let bound = least_packs(&counts, 20) as usize;
            prop_assert!(bound <= best && 3 * bound >= 2 * best, "bound {bound}, best {best}");
            prop_assert!(bound >= lengths.iter().sum::<u32>().div_ceil(20) as usize);
        }
    }

    #[test]
    fn full_where_there_are_many() {
        // Log-normal lengths by the inverse of a logistic: close enough, and without a generator.
        let length = |i: u64| {
            let share = ((i * 7919) % 100_003) as f64 / 100_003.0 + 5e-6;
            (420.0 * (share / (1.0 - share)).powf(0.55)).ceil().min(4096.0) as u32
        };
        let lengths: Vec<u32> = (0..100_000).map(length).collect();
        let packs = pack_lengths(&lengths, PackLimits::tokens(8192));
        let mut counts = vec![0; 8193];
        lengths.iter().for_each(|&length| counts[length as usize] += 1);
        let bound = least_packs(&counts, 8192) as f64;
        assert!(bound / packs.num_packs() as f64 >= 0.9998, "{} packs, {bound} at least", packs.num_packs());
        assert!(packs.fill(&[8192]) >= 0.9997);
    }

    #[test]
    fn a_pack_may_be_of_the_smallest_size_that_holds_it() {
        let packs = pack_lengths(&[9, 6, 3], PackLimits::tokens(10));
        assert_eq!(packs.num_tokens, [9, 9]);
        assert_eq!(packs.fill(&[10]), 0.9);
        let packs = pack_lengths(&[9, 5, 11, 2], PackLimits::tokens(10));
        assert_eq!((packs.num_tokens.clone(), packs.too_large.clone()), (vec![9, 7], vec![2]));
        assert_eq!(packs.pack_of().collect::<Vec<_>>(), [Some(0), Some(1), None, Some(1)]);
        assert_eq!(packs.fill(&[10, 8]), 16.0 / 18.0);
    }
}
