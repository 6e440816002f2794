//! Packs the samples of a step into as few rows as possible, with rows of equal cost.

use super::limits::{Load, PackLimits, SampleSize};
use super::offline::pack_offline;
use crate::message::SampleMeta;
use crate::schedule::CostModel;
use crate::schedule::balance::{Capacity, by_falling, longest_first};
use std::collections::BinaryHeap;

/// Number of pack counts below first fit's that are tried: each costs a pass over the samples.
const MAX_TRIALS: usize = 4;

/// Returns packs as ascending indices into `samples`, ordered by their first sample. Every sample must fit in a pack by itself.
///
/// Their number is first fit decreasing's (at most 11/9 of the best plus 6/9: Dósa 2007), less what a few trials save,
/// rounded up to a multiple of `replicas` where there are enough samples, so that no replica waits for another's last
/// pack. Where media items are limited too it is best fit decreasing's, of which no such bound is known.
pub(crate) fn pack(samples: &[SampleMeta], limits: PackLimits, cost: CostModel, replicas: usize) -> Vec<Vec<usize>> {
    let sizes: Vec<SampleSize> = samples.iter().map(SampleSize::of).collect();
    let costs: Vec<u64> = samples.iter().map(|sample| cost.sample(sample)).collect();
    let weights: Vec<u64> = sizes.iter().map(|size| u64::from(size.tokens)).collect();
    let room = Capacity { weight: limits.max_tokens as u64, count: limits.max_samples.max(1) };
    let media_limited = limits.max_images < usize::MAX || limits.max_visual_tokens < usize::MAX;

    let first_fit = if media_limited { best_fit(&sizes, limits) } else { first_fit_decreasing(&weights, room) };
    let num_first_fit = first_fit.iter().max().map_or(0, |&pack| pack + 1);
    let total: u64 = weights.iter().sum();
    let least = (total.div_ceil(room.weight.max(1)) as usize).max(samples.len().div_ceil(room.count)).max(1);
    let balanced = |num_packs| {
        let bin_of = longest_first(&costs, &weights, num_packs, room)?;
        (!media_limited || within(&bin_of, num_packs, &sizes, &limits)).then_some(bin_of)
    };
    let rounded = |num_packs: usize| {
        let rounded = num_packs.next_multiple_of(replicas.max(1));
        if rounded <= samples.len() { rounded } else { num_packs }
    };
    // Numbers that are rounded to the same are tried once.
    let mut trials: Vec<usize> =
        (least.max(num_first_fit.saturating_sub(MAX_TRIALS))..=num_first_fit).map(rounded).collect();
    trials.dedup();
    let found = trials.into_iter().find_map(|num_packs| Some((num_packs, balanced(num_packs)?)));
    let mut packs = match found {
        Some((num_packs, bin_of)) => collect(&bin_of, num_packs),
        None => split_costliest(collect(&first_fit, num_first_fit), rounded(num_first_fit), &costs),
    };
    packs.iter_mut().for_each(|pack| pack.sort_unstable());
    packs.sort_unstable();
    packs
}

/// Every bin keeps all limits.
fn within(bin_of: &[usize], num_packs: usize, sizes: &[SampleSize], limits: &PackLimits) -> bool {
    let mut loads = vec![Load::default(); num_packs];
    bin_of.iter().zip(sizes).for_each(|(&bin, &size)| loads[bin] = loads[bin].with(size));
    loads.iter().all(|load| load.fits(limits))
}

fn best_fit(sizes: &[SampleSize], limits: PackLimits) -> Vec<usize> {
    let packs = pack_offline(sizes, limits);
    packs.pack_of().map(|pack| pack.expect("every sample fits a pack by itself") as usize).collect()
}

/// Returns the items of each pack, in their order, by the pack of each item; packs without items are left out.
pub(super) fn collect(bin_of: &[usize], num_packs: usize) -> Vec<Vec<usize>> {
    let mut packs = vec![Vec::new(); num_packs];
    for (item, &bin) in bin_of.iter().enumerate() {
        packs[bin].push(item);
    }
    packs.retain(|pack| !pack.is_empty());
    packs
}

/// Returns the bin of every item: by falling weight, each into the first bin with room.
pub(super) fn first_fit_decreasing(weights: &[u64], room: Capacity) -> Vec<usize> {
    // A tree of the most room among the bins of a range: 0 is a bin that is closed, `w + 1` one with room for `w`.
    let num_leaves = weights.len().next_power_of_two();
    let mut most = vec![room.weight + 1; 2 * num_leaves];
    let mut counts = vec![0; weights.len()];
    let mut bin_of = vec![0; weights.len()];
    for item in by_falling(weights) {
        let need = weights[item] + 1;
        let mut node = 1;
        while node < num_leaves {
            node = if most[2 * node] >= need { 2 * node } else { 2 * node + 1 };
        }
        let bin = node - num_leaves;
        bin_of[item] = bin;
        counts[bin] += 1;
        most[node] = if counts[bin] < room.count { most[node] - weights[item] } else { 0 };
        while node > 1 {
            node /= 2;
            most[node] = most[2 * node].max(most[2 * node + 1]);
        }
    }
    bin_of
}

/// Halves the costliest pack of several samples until there are `num_packs`: what fitted still fits.
pub(super) fn split_costliest(mut packs: Vec<Vec<usize>>, num_packs: usize, costs: &[u64]) -> Vec<Vec<usize>> {
    let price = |pack: &Vec<usize>| pack.iter().map(|&item| costs[item]).sum::<u64>();
    let mut costliest: BinaryHeap<(u64, usize)> =
        packs.iter().zip(0..).filter(|(pack, _)| pack.len() > 1).map(|(pack, at)| (price(pack), at)).collect();
    while packs.len() < num_packs {
        let Some((_, at)) = costliest.pop() else { break };
        let half = packs[at].len() / 2;
        let half = packs[at].split_off(half);
        packs.push(half);
        for at in [at, packs.len() - 1] {
            if packs[at].len() > 1 {
                costliest.push((price(&packs[at]), at));
            }
        }
    }
    packs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Grid, ItemMeta, SampleId, Tower};
    use proptest::prelude::*;

    fn cost() -> CostModel {
        CostModel::decoder(4)
    }

    fn samples(lengths: &[u32]) -> Vec<SampleMeta> {
        let sample = |(index, &num_tokens)| SampleMeta {
            items: vec![],
            documents: vec![],
            ..SampleMeta::of_tokens(SampleId(index as u64), num_tokens, 1)
        };
        lengths.iter().enumerate().map(sample).collect()
    }

    /// Returns the least number of bins over every assignment.
    fn best_count(lengths: &[u32], limits: PackLimits, bins: &mut Vec<(u32, usize)>) -> usize {
        let Some((&length, rest)) = lengths.split_first() else { return bins.len() };
        let mut best = usize::MAX;
        for bin in 0..=bins.len() {
            if bin == bins.len() {
                bins.push((0, 0));
            }
            let (used, count) = bins[bin];
            if used + length <= limits.max_tokens as u32 && count < limits.max_samples {
                bins[bin] = (used + length, count + 1);
                best = best.min(best_count(rest, limits, bins));
                bins[bin] = (used, count);
            }
            if count == 0 {
                bins.pop();
                break;
            }
        }
        best
    }

    proptest! {
        #[test]
        fn every_sample_once_limits_kept_and_few_packs(
            lengths in prop::collection::vec(1_u32..=10, 1..8),
            max_samples in 1_usize..5,
            replicas in 1_usize..4,
        ) {
            let limits = PackLimits { max_samples, ..PackLimits::tokens(10) };
            let packs = pack(&samples(&lengths), limits, cost(), replicas);
            let mut all: Vec<usize> = packs.iter().flatten().copied().collect();
            prop_assert!(packs.iter().all(|pack| pack.is_sorted() && !pack.is_empty()));
            prop_assert!(packs.is_sorted());
            all.sort_unstable();
            prop_assert_eq!(all, (0..lengths.len()).collect::<Vec<_>>());
            for pack in &packs {
                prop_assert!(pack.len() <= max_samples);
                prop_assert!(pack.iter().map(|&item| lengths[item]).sum::<u32>() <= 10);
            }
            let best = best_count(&lengths, limits, &mut Vec::new());
            let most = 11 * best / 9 + 1;
            prop_assert!(packs.len() <= most.next_multiple_of(replicas), "{} packs, best {best}", packs.len());
            if replicas == 1 {
                prop_assert!(packs.len() <= most);
            } else if !packs.len().is_multiple_of(replicas) {
                prop_assert!(packs.len().next_multiple_of(replicas) > lengths.len());
            }
        }
    }

    proptest! {
        #[test]
        fn media_items_are_limited_too(
            rows in prop::collection::vec((1_u32..30, prop::collection::vec(1_u32..9, 0..4)), 0..40),
            max_images in 3_usize..7,
            max_visual_tokens in 24_usize..40,
            replicas in 1_usize..4,
        ) {
            let limits = PackLimits { max_images, max_visual_tokens, ..PackLimits::tokens(60) };
            let lengths: Vec<u32> = rows.iter().map(|(length, _)| *length).collect();
            let mut samples = samples(&lengths);
            for (sample, (_, features)) in samples.iter_mut().zip(&rows) {
                let item = |&num_features: &u32| ItemMeta { tower: Tower::Vision, grid: Grid { t: 1, h: 1, w: 1 }, num_features };
                sample.items = features.iter().map(item).collect();
            }
            let packs = pack(&samples, limits, cost(), replicas);
            let mut all = packs.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..rows.len()).collect::<Vec<_>>());
            for pack in packs {
                let sizes = pack.iter().map(|&at| SampleSize::of(&samples[at]));
                prop_assert!(sizes.fold(Load::default(), Load::with).fits(&limits));
            }
        }
    }

    #[test]
    fn packs_cost_alike() {
        let lengths = [8, 8, 2, 2, 2, 2, 2, 2];
        let packs = pack(&samples(&lengths), PackLimits::tokens(20), cost(), 1);
        let tokens: Vec<u32> = packs.iter().map(|pack| pack.iter().map(|&item| lengths[item]).sum()).collect();
        assert_eq!(tokens, [14, 14]);
    }

    #[test]
    fn a_split_packing_still_fits() {
        assert_eq!(
            split_costliest(vec![vec![0, 1, 2], vec![3]], 4, &[1, 1, 1, 9]),
            [vec![0], vec![3], vec![1], vec![2]]
        );
    }
}
