//! Assigns items with group deadlines to lanes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Consecutive items of one group, on one lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub group: usize,
    pub items: Range<usize>,
    pub lane: usize,
}

/// Returns chunks in the order of the groups, which is the order of their deadlines: each group in turn is split so that its last
/// chunk ends as early as possible, given the earlier work of its lanes. A group has at most one chunk per lane and `max_chunks` in
/// all; each chunk costs `overhead` in addition to its items. A group may end that much later if this saves chunks, so that small
/// amounts of work are not split.
///
/// Lanes are taken in order of load, lowest first, and the cuts are optimal for that order. A group ends by `(load of all lanes +
/// its cost) / lanes + its largest item + 2 · overhead`, rounded up, if `max_chunks` allows all lanes; no schedule ends all groups
/// up to it before `(load + cost) / lanes`.
pub(crate) fn by_deadline(groups: &[Vec<u64>], num_lanes: usize, overhead: u64, max_chunks: usize) -> Vec<Chunk> {
    let mut loads = vec![0_u64; num_lanes];
    let mut by_load: BinaryHeap<Reverse<(u64, usize)>> = (0..num_lanes).map(|lane| Reverse((0, lane))).collect();
    let (mut chunks, mut lanes) = (Vec::new(), Vec::new());
    for (group, costs) in groups.iter().enumerate() {
        // What a lane cannot take in time no busier one can: as many lanes as items are enough.
        let most = max_chunks.max(1).min(costs.len());
        lanes.clear();
        lanes.extend(std::iter::from_fn(|| by_load.pop()).take(most).map(|Reverse((_, lane))| lane));
        let Some(&lightest) = lanes.first() else { continue };
        // The largest item is somewhere; all of them on one lane are one way.
        let begin = loads[lightest] + overhead;
        let largest = costs.iter().copied().max().unwrap_or(0);
        let (mut low, mut high) = (begin + largest, begin + costs.iter().sum::<u64>());
        while low < high {
            let end = low + (high - low) / 2;
            if cut(costs, &lanes, &loads, overhead, end, |_, _| {}) { high = end } else { low = end + 1 }
        }
        let first = chunks.len();
        let piece = |lane, items| chunks.push(Chunk { group, items, lane });
        let all = cut(costs, &lanes, &loads, overhead, low + overhead, piece);
        assert!(all, "one lane can take all");
        for Chunk { items, lane, .. } in &chunks[first..] {
            loads[*lane] += overhead + costs[items.clone()].iter().sum::<u64>();
        }
        by_load.extend(lanes.iter().map(|&lane| Reverse((loads[lane], lane))));
    }
    chunks
}

/// Gives each lane as much as it can finish by `end`; returns false if something is left.
fn cut(
    costs: &[u64],
    lanes: &[usize],
    loads: &[u64],
    overhead: u64,
    end: u64,
    mut piece: impl FnMut(usize, Range<usize>),
) -> bool {
    let mut start = 0;
    for &lane in lanes {
        let mut load = loads[lane] + overhead;
        let mut until = start;
        while until < costs.len() && load + costs[until] <= end {
            load += costs[until];
            until += 1;
        }
        if until > start {
            piece(lane, start..until);
            start = until;
        }
    }
    start == costs.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn every_item_once_in_order_and_each_group_in_time(
            groups in prop::collection::vec(prop::collection::vec(0_u64..40, 0..9), 1..8),
            num_lanes in 1_usize..6,
            overhead in 0_u64..10,
        ) {
            let chunks = by_deadline(&groups, num_lanes, overhead, num_lanes);
            let mut loads = vec![0; num_lanes];
            for (group, costs) in groups.iter().enumerate() {
                let of: Vec<&Chunk> = chunks.iter().filter(|chunk| chunk.group == group).collect();
                let items: Vec<usize> = of.iter().flat_map(|chunk| chunk.items.clone()).collect();
                prop_assert_eq!(items, (0..costs.len()).collect::<Vec<_>>());
                let lanes: BTreeSet<usize> = of.iter().map(|chunk| chunk.lane).collect();
                prop_assert_eq!(lanes.len(), of.len());
                let work = loads.iter().sum::<u64>() + costs.iter().sum::<u64>();
                let largest = costs.iter().copied().max().unwrap_or(0);
                let bound = work.div_ceil(num_lanes as u64) + largest + 2 * overhead;
                for chunk in of {
                    loads[chunk.lane] += overhead + costs[chunk.items.clone()].iter().sum::<u64>();
                    prop_assert!(loads[chunk.lane] <= bound, "{} > {bound}", loads[chunk.lane]);
                }
            }
            prop_assert!(chunks.is_sorted_by_key(|chunk| chunk.group));
        }

        #[test]
        fn a_first_group_ends_as_early_as_chunks_allow(costs in prop::collection::vec(0_u64..40, 1..8), num_lanes in 1_usize..4) {
            let chunks = by_deadline(std::slice::from_ref(&costs), num_lanes, 0, num_lanes);
            let heaviest = |ranges: Vec<Range<usize>>| ranges.into_iter().map(|at| costs[at].iter().sum::<u64>()).max();
            let ours = heaviest(chunks.into_iter().map(|chunk| chunk.items).collect());
            prop_assert_eq!(ours, heaviest(super::super::consecutive(&costs, num_lanes)));
        }
    }

    #[test]
    fn the_busy_lane_gets_less_and_crumbs_are_not_made() {
        let chunks = by_deadline(&[vec![10], vec![4, 4, 4, 4]], 2, 0, 2);
        let of = |group, items, lane| Chunk { group, items, lane };
        assert_eq!(chunks, [of(0, 0..1, 0), of(1, 0..3, 1), of(1, 3..4, 0)]);
        assert_eq!(by_deadline(&[vec![1, 1, 1]], 3, 100, 3), [of(0, 0..3, 0)]);
    }
}
