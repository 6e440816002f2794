//! Describes which sample stands at a position of the stream: several files mixed by weight, each shuffled anew every
//! epoch. A pure function of files' lengths, weights, seed and position, so a run goes on from a position alone.

use super::order::{Order, shuffle_in_place};
use crate::rng::Rng;

/// Positions after which every source has had its exact share, where there are fewer sources than that.
const BLOCK: usize = 1000;
/// The same for each of more sources: with one position each, their weights would have no effect.
const PER_SOURCE: usize = 10;
/// Samples up to which sources whose weights are their lengths have each sample once in a block.
const MAX_WHOLE: u64 = 1 << 20;
/// The part by which such weights may differ from lengths: some samples may be set aside.
const CLOSE: f64 = 0.01;

/// The order of samples over all sources.
#[derive(Clone, Debug)]
pub struct Mixture {
    seed: u64,
    shuffle: bool,
    sources: Vec<Source>,
    /// The source of each place in a block, and the number of samples of that source before it in the block.
    block: Vec<(u32, u32)>,
}

#[derive(Clone, Debug)]
struct Source {
    order: Order,
    per_block: u64,
}

/// Describes where a sample is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleLocation {
    pub source: usize,
    /// The number of times that the source was gone through before.
    pub epoch: u64,
    /// Index of the sample in its source.
    pub index: u64,
}

impl Mixture {
    /// `sources` are (number of samples, weight): a share of positions proportional to the weight, rounded to a
    /// thousandth, at least one; where weights are in proportion to lengths, the lengths. Lengths and weights are above 0.
    pub fn new(sources: &[(usize, f64)], seed: u64, shuffle: bool) -> Self {
        let orders = sources.iter().map(|&(len, weight)| (Order::new(&[len as u64], 1), weight));
        Self::of_orders(orders.collect(), seed, shuffle)
    }

    /// Makes the mixture of sources of several blocks each.
    pub fn of_orders(sources: Vec<(Order, f64)>, seed: u64, shuffle: bool) -> Self {
        Self::in_blocks(sources, BLOCK, seed, shuffle)
    }

    /// Works like [`Mixture::of_orders`] with shares that are rounded to a millionth.
    pub fn exact(sources: Vec<(Order, f64)>, seed: u64, shuffle: bool) -> Self {
        Self::in_blocks(sources, MAX_WHOLE as usize, seed, shuffle)
    }

    fn in_blocks(sources: Vec<(Order, f64)>, block: usize, seed: u64, shuffle: bool) -> Self {
        let (lens, weights): (Vec<u64>, Vec<f64>) =
            sources.iter().map(|(order, weight)| (order.len(), *weight)).unzip();
        let shares = whole(&lens, &weights).unwrap_or_else(|| shares(&weights, block));
        let mut order: Vec<u32> = shares.iter().zip(0..).flat_map(|(&n, i)| std::iter::repeat_n(i, n)).collect();
        shuffle_in_place(&mut order, &mut Rng::new(&[seed, 0x6d69_7874]));
        let mut counts = vec![0; shares.len()];
        let block = order.into_iter().map(|source| {
            counts[source as usize] += 1;
            (source, counts[source as usize] - 1)
        });
        Self {
            seed,
            shuffle,
            block: block.collect(),
            sources: sources
                .into_iter()
                .zip(shares)
                .map(|((order, _), share)| Source { order, per_block: share as u64 })
                .collect(),
        }
    }

    /// Returns the data set and the index in it of a position. Each set has its share of every block of positions.
    pub fn place(&self, position: u64) -> SampleLocation {
        let (block, within) = (position / self.block.len() as u64, position % self.block.len() as u64);
        let (source, rank) = self.block[within as usize];
        let Source { order, per_block } = &self.sources[source as usize];
        let draw = block * per_block + u64::from(rank);
        let (epoch, index) = (draw / order.len(), draw % order.len());
        let key = [self.seed, u64::from(source), epoch];
        let index = if self.shuffle { order.index(index, &key) } else { index };
        SampleLocation { source: source as usize, epoch, index }
    }
}

/// Returns the lengths of several sources as shares, where weights are in proportion to them: a block is an epoch of all.
fn whole(lens: &[u64], weights: &[f64]) -> Option<Vec<usize>> {
    let is_small = lens.iter().try_fold(0u64, |sum, &len| sum.checked_add(len)).is_some_and(|sum| sum <= MAX_WHOLE);
    let ratios = || weights.iter().zip(lens).map(|(weight, &len)| weight / len as f64);
    let (least, most) = (ratios().fold(f64::INFINITY, f64::min), ratios().fold(0.0, f64::max));
    let is_whole = lens.len() > 1 && is_small && most <= least * (1.0 + CLOSE);
    is_whole.then(|| lens.iter().map(|&len| len as usize).collect())
}

/// Shares of a block of so many positions, or of more where there are as many sources, by largest remainder, none 0.
fn shares(weights: &[f64], block: usize) -> Vec<usize> {
    if weights.len() == 1 {
        return vec![1];
    }
    let size = if weights.len() < block { block } else { PER_SOURCE * weights.len() };
    let total: f64 = weights.iter().sum();
    let free = (size - weights.len()) as f64;
    let exact: Vec<f64> = weights.iter().map(|weight| (weight / total * size as f64 - 1.0).max(0.0)).collect();
    let scale = free / exact.iter().sum::<f64>().max(f64::MIN_POSITIVE);
    let exact: Vec<f64> = exact.into_iter().map(|share| share * scale).collect();
    let mut shares: Vec<usize> = exact.iter().map(|share| share.floor() as usize + 1).collect();
    let mut by_remainder: Vec<usize> = (0..weights.len()).collect();
    by_remainder.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()));
    let missing = size - shares.iter().sum::<usize>();
    for &index in by_remainder.iter().cycle().take(missing) {
        shares[index] += 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_epoch_has_every_sample_once_and_epochs_differ() {
        let mixture = Mixture::new(&[(97, 1.0)], 3, true);
        let epoch = |e: u64| (0..97).map(|i| mixture.place(e * 97 + i)).collect::<Vec<_>>();
        for e in [0, 1, 5] {
            let mut seen: Vec<u64> = epoch(e).iter().map(|place| place.index).collect();
            assert!(epoch(e).iter().all(|place| place.epoch == e));
            seen.sort_unstable();
            assert_eq!(seen, (0..97).collect::<Vec<_>>());
        }
        assert_ne!(
            epoch(0).iter().map(|p| p.index).collect::<Vec<_>>(),
            epoch(1).iter().map(|p| p.index).collect::<Vec<_>>()
        );
        let in_order = Mixture::new(&[(5, 1.0)], 3, false);
        assert_eq!((0..6).map(|p| in_order.place(p).index).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 0]);
    }

    #[test]
    fn sources_whose_weights_are_their_lengths_have_every_sample_once_an_epoch() {
        let lens = [70, 80, 3];
        for weights in [[70.0, 80.0, 3.0], [0.7, 0.8, 0.03], [7.03, 8.0, 0.3]] {
            let sources: Vec<(usize, f64)> = lens.into_iter().zip(weights).collect();
            let mixture = Mixture::new(&sources, 5, true);
            for epoch in 0..3 {
                let places = (0..153).map(|at| mixture.place(epoch * 153 + at));
                let mut seen: Vec<(usize, u64)> = places.map(|place| (place.source, place.index)).collect();
                seen.sort_unstable();
                let all = lens.iter().enumerate().flat_map(|(set, &len)| (0..len as u64).map(move |at| (set, at)));
                assert_eq!(seen, all.collect::<Vec<_>>(), "epoch {epoch}, {weights:?}");
            }
        }
    }

    #[test]
    fn weights_of_very_many_sources_have_an_effect() {
        let mut weights = vec![1.0; BLOCK];
        weights[0] = BLOCK as f64;
        let shares = shares(&weights, BLOCK);
        let all: usize = shares.iter().sum();
        assert!(shares[0] * 100 / all >= 49 && shares[1..].iter().all(|&share| share > 0), "{} of {all}", shares[0]);
    }

    #[test]
    fn exact_shares_of_sets_that_are_too_large_for_one_block_are_close_to_their_lengths() {
        let lens = [3e6, 1e6, 40.0];
        let (size, all) = (MAX_WHOLE as usize, lens.iter().sum::<f64>());
        let shares = shares(&lens, size);
        assert_eq!(shares.iter().sum::<usize>(), size);
        for (len, share) in lens.into_iter().zip(shares) {
            assert!((len / all * size as f64 - share as f64).abs() <= 1.5, "{share} for {len}");
        }
    }

    proptest! {
        #[test]
        fn shares_follow_the_weights_and_no_sample_is_left_out(
            sources in prop::collection::vec((1usize..40, 0.01f64..10.0), 2..6), seed: u64,
        ) {
            let mixture = Mixture::new(&sources, seed, true);
            let total: f64 = sources.iter().map(|s| s.1).sum();
            let mut seen = vec![std::collections::BTreeMap::<(u64, u64), u32>::new(); sources.len()];
            for position in 0..3000 {
                let place = mixture.place(position);
                *seen[place.source].entry((place.epoch, place.index)).or_default() += 1;
            }
            for (source, seen) in sources.iter().zip(seen) {
                prop_assert!(seen.values().all(|&times| times == 1));
                let share = seen.len() as f64 / 3000.0;
                prop_assert!((share - source.1 / total).abs() < 0.01, "{share} {}", source.1 / total);
            }
        }
    }
}
