//! Sharing work out: to bins by longest processing time first, and to consecutive chunks.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;

/// What a bin may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub weight: u64,
    pub count: usize,
}

/// Bin of every item: items by falling cost, each into the cheapest bin that has room for it (Graham's LPT, within
/// 4/3 of the best makespan where room does not bind). Ties go to the first. `None`: some item found no room.
pub(super) fn longest_first(costs: &[u64], weights: &[u64], num_bins: usize, room: Room) -> Option<Vec<usize>> {
    let mut order: Vec<usize> = (0..costs.len()).collect();
    order.sort_by_key(|&item| (Reverse(costs[item]), item));
    let mut used = vec![Room { weight: 0, count: 0 }; num_bins];
    let mut by_cost: BTreeSet<(u64, usize)> = (0..num_bins).map(|bin| (0, bin)).collect();
    let mut bin_of = vec![0; costs.len()];
    for item in order {
        let fits = |used: &Room| used.weight + weights[item] <= room.weight && used.count < room.count;
        let &(cost, bin) = by_cost.iter().find(|(_, bin)| fits(&used[*bin]))?;
        by_cost.remove(&(cost, bin));
        by_cost.insert((cost + costs[item], bin));
        used[bin].weight += weights[item];
        used[bin].count += 1;
        bin_of[item] = bin;
    }
    Some(bin_of)
}

/// At most `max_chunks` consecutive chunks whose heaviest is as light as possible.
pub(super) fn consecutive(weights: &[u64], max_chunks: usize) -> Vec<Range<usize>> {
    let (mut low, mut high) = (weights.iter().copied().max().unwrap_or(0), weights.iter().sum());
    while low < high {
        let limit = low + (high - low) / 2;
        if fill(weights, limit).len() <= max_chunks { high = limit } else { low = limit + 1 }
    }
    fill(weights, low)
}

/// Chunks of at most `limit`, each as long as possible.
fn fill(weights: &[u64], limit: u64) -> Vec<Range<usize>> {
    let (mut chunks, mut start, mut sum) = (Vec::new(), 0, 0);
    for (index, &weight) in weights.iter().enumerate() {
        if index > start && sum + weight > limit {
            chunks.push(start..index);
            (start, sum) = (index, 0);
        }
        sum += weight;
    }
    if start < weights.len() {
        chunks.push(start..weights.len());
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Least makespan over every assignment.
    fn best_makespan(costs: &[u64], num_bins: usize) -> u64 {
        (0..num_bins.pow(costs.len() as u32))
            .map(|mut code| {
                let mut loads = vec![0; num_bins];
                for cost in costs {
                    loads[code % num_bins] += cost;
                    code /= num_bins;
                }
                loads.into_iter().max().unwrap()
            })
            .min()
            .unwrap()
    }

    /// Least bottleneck over every way to cut.
    fn best_bottleneck(weights: &[u64], max_chunks: usize) -> u64 {
        if max_chunks == 1 || weights.len() <= 1 {
            return weights.iter().sum();
        }
        (1..=weights.len())
            .map(|cut| {
                let head: u64 = weights[..cut].iter().sum();
                head.max(best_bottleneck(&weights[cut..], max_chunks - 1))
            })
            .min()
            .unwrap()
    }

    proptest! {
        #[test]
        fn longest_first_is_within_grahams_bound(
            costs in prop::collection::vec(1_u64..50, 1..7),
            num_bins in 1_usize..4,
        ) {
            let free = Room { weight: 0, count: costs.len() };
            let bin_of = longest_first(&costs, &vec![0; costs.len()], num_bins, free).unwrap();
            let mut loads = vec![0; num_bins];
            for (item, bin) in bin_of.into_iter().enumerate() {
                loads[bin] += costs[item];
            }
            let best = best_makespan(&costs, num_bins);
            let makespan = loads.into_iter().max().unwrap();
            // (4/3 - 1/(3m)) · best
            prop_assert!(makespan * 3 * num_bins as u64 <= best * (4 * num_bins as u64 - 1), "{makespan} > {best}");
        }

        #[test]
        fn consecutive_chunks_are_the_best_there_are(
            weights in prop::collection::vec(0_u64..30, 0..9),
            max_chunks in 1_usize..5,
        ) {
            let chunks = consecutive(&weights, max_chunks);
            prop_assert!(chunks.len() <= max_chunks);
            let joined: Vec<usize> = chunks.iter().cloned().flatten().collect();
            prop_assert_eq!(joined, (0..weights.len()).collect::<Vec<_>>());
            let heaviest = chunks.into_iter().map(|chunk| weights[chunk].iter().sum::<u64>()).max().unwrap_or(0);
            prop_assert_eq!(heaviest, best_bottleneck(&weights, max_chunks));
        }
    }

    #[test]
    fn no_room_is_said() {
        assert!(longest_first(&[1, 1, 1], &[6, 6, 6], 2, Room { weight: 10, count: 9 }).is_none());
        assert!(longest_first(&[1, 1, 1], &[1, 1, 1], 2, Room { weight: 10, count: 1 }).is_none());
    }
}
