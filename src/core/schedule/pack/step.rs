//! Packing: samples into as few rows as hold them, and rows that cost alike.

use super::PackLimits;
use crate::message::SampleMeta;
use crate::schedule::CostModel;
use crate::schedule::balance::{Room, longest_first};
use std::cmp::Reverse;

/// Numbers of packs that are tried below first fit's: each costs a pass over the samples.
const MAX_TRIALS: usize = 4;

/// Packs as ascending indices into `samples`, by their first sample. Every sample must fit a pack by itself.
///
/// Their number is first fit decreasing's (at most 11/9 of the best plus one), less what a few trials save, rounded up
/// to a multiple of `replicas` where there are enough samples, so that no replica waits for another's last pack.
pub(crate) fn pack(samples: &[SampleMeta], limits: PackLimits, cost: CostModel, replicas: usize) -> Vec<Vec<usize>> {
    let costs: Vec<u64> = samples.iter().map(|sample| cost.sample(sample)).collect();
    let weights: Vec<u64> = samples.iter().map(|sample| u64::from(sample.num_tokens)).collect();
    let room = Room { weight: limits.max_tokens as u64, count: limits.max_samples.max(1) };

    let first_fit = first_fit_decreasing(&weights, room);
    let total: u64 = weights.iter().sum();
    let least = (total.div_ceil(room.weight.max(1)) as usize).max(samples.len().div_ceil(room.count)).max(1);
    let balanced = |num_packs| longest_first(&costs, &weights, num_packs, room);
    let fewest = least.max(first_fit.len().saturating_sub(MAX_TRIALS));
    let found = (fewest..first_fit.len()).find_map(|num_packs| Some((num_packs, balanced(num_packs)?)));
    let smallest = found.as_ref().map_or(first_fit.len(), |(num_packs, _)| *num_packs);

    let rounded = smallest.next_multiple_of(replicas.max(1));
    let num_packs = if rounded <= samples.len() { rounded } else { smallest };
    let bin_of = match found {
        Some((found, bin_of)) if found == num_packs => Some(bin_of),
        _ => balanced(num_packs),
    };
    let mut packs = match bin_of {
        Some(bin_of) => collect(&bin_of, num_packs),
        None => split_dearest(first_fit, num_packs, &costs),
    };
    packs.iter_mut().for_each(|pack| pack.sort_unstable());
    packs.sort_unstable();
    packs
}

fn collect(bin_of: &[usize], num_packs: usize) -> Vec<Vec<usize>> {
    let mut packs = vec![Vec::new(); num_packs];
    for (item, &bin) in bin_of.iter().enumerate() {
        packs[bin].push(item);
    }
    packs.retain(|pack| !pack.is_empty());
    packs
}

/// Items by falling weight, each into the first bin that has room.
fn first_fit_decreasing(weights: &[u64], room: Room) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|&item| (Reverse(weights[item]), item));
    let mut bins: Vec<(u64, Vec<usize>)> = Vec::new();
    for item in order {
        let fits = |(weight, items): &&mut (u64, Vec<usize>)| {
            *weight + weights[item] <= room.weight && items.len() < room.count
        };
        match bins.iter_mut().find(fits) {
            Some((weight, items)) => {
                *weight += weights[item];
                items.push(item);
            }
            None => bins.push((weights[item], vec![item])),
        }
    }
    bins.into_iter().map(|(_, items)| items).collect()
}

/// Halves the dearest pack of several samples until there are `num_packs`: what fitted still fits.
fn split_dearest(mut packs: Vec<Vec<usize>>, num_packs: usize, costs: &[u64]) -> Vec<Vec<usize>> {
    while packs.len() < num_packs {
        let price = |pack: &Vec<usize>| pack.iter().map(|&item| costs[item]).sum::<u64>();
        let dearest = packs.iter_mut().filter(|pack| pack.len() > 1).max_by_key(|pack| price(pack));
        let Some(pack) = dearest else { break };
        let half = pack.split_off(pack.len() / 2);
        packs.push(half);
    }
    packs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::SampleId;
    use proptest::prelude::*;

    fn cost() -> CostModel {
        CostModel::decoder(4)
    }

    fn samples(lengths: &[u32]) -> Vec<SampleMeta> {
        let sample = |(index, &num_tokens)| SampleMeta {
            id: SampleId(index as u64),
            owner: 0,
            num_tokens,
            num_targets: 1,
            items: vec![],
            documents: vec![],
        };
        lengths.iter().enumerate().map(sample).collect()
    }

    /// Least number of bins over every assignment.
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

    #[test]
    fn packs_cost_alike() {
        let lengths = [8, 8, 2, 2, 2, 2, 2, 2];
        let packs = pack(&samples(&lengths), PackLimits::tokens(20), cost(), 1);
        let tokens: Vec<u32> = packs.iter().map(|pack| pack.iter().map(|&item| lengths[item]).sum()).collect();
        assert_eq!(tokens, [14, 14]);
    }

    #[test]
    fn a_split_packing_still_fits() {
        assert_eq!(split_dearest(vec![vec![0, 1, 2], vec![3]], 4, &[1, 1, 1, 9]), [vec![0], vec![3], vec![1], vec![2]]);
    }
}
