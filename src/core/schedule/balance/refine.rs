//! Refines an assignment by moves and swaps between the costliest bin and the cheapest ones.

use super::longest_first::{Capacity, longest_first_anywhere};
use std::collections::BTreeSet;

/// Relative distance from the lower bound at which an assignment is good enough: costs are not known more precisely.
const CLOSE_ENOUGH: u64 = 512;
/// Number of cheapest bins that the costliest one tries to pass work to at a time.
const MAX_PARTNERS: usize = 4;

/// Returns the bin of every item: longest first, then refined. The result is never worse than longest first, so within 4/3 of the best
/// makespan, and within the largest item of the mean. An item above the mean is no special case: it is alone in its bin.
///
/// # Panics
/// There is no bin.
pub fn balance(costs: &[u64], num_bins: usize) -> Vec<usize> {
    let mut bin_of = longest_first_anywhere(costs, num_bins);
    let room = Capacity { weight: 0, count: costs.len() };
    refine(costs, &vec![0; costs.len()], num_bins, room, &mut bin_of);
    bin_of
}

/// Returns the sum of the costs in each bin.
pub fn loads_of(costs: &[u64], num_bins: usize, bin_of: &[usize]) -> Vec<u64> {
    let mut loads = vec![0; num_bins];
    costs.iter().zip(bin_of).for_each(|(cost, &bin)| loads[bin] += cost);
    loads
}

/// Moves work from the costliest bin to one of the cheapest, by the move or swap that evens out the two best, while the costliest
/// gets cheaper and is above the lower bound. Capacities are respected.
pub(crate) fn refine(costs: &[u64], weights: &[u64], num_bins: usize, room: Capacity, bin_of: &mut [usize]) {
    let least =
        costs.iter().sum::<u64>().div_ceil(num_bins.max(1) as u64).max(costs.iter().copied().max().unwrap_or(0));
    let close = least + least / CLOSE_ENOUGH;
    if loads_of(costs, num_bins, bin_of).iter().all(|&load| load <= close) {
        return;
    }
    let mut bins = Bins::new(costs, weights, num_bins, room, bin_of);
    for _ in 0..4 * num_bins {
        let Some(&(costliest, from)) = bins.by_load.last() else { return };
        if costliest <= close {
            return;
        }
        let partners: Vec<usize> = bins.by_load.iter().take(MAX_PARTNERS).map(|&(_, bin)| bin).collect();
        let steps = partners.into_iter().filter(|&to| to != from).filter_map(|to| bins.best_step(from, to));
        let Some(step) = steps.min_by_key(|step| step.dearer) else { return };
        bins.apply(&step, bin_of);
    }
}

struct Bins<'a> {
    costs: &'a [u64],
    weights: &'a [u64],
    room: Capacity,
    loads: Vec<u64>,
    used: Vec<u64>,
    /// Items of each bin in order of falling cost.
    items: Vec<Vec<usize>>,
    by_load: BTreeSet<(u64, usize)>,
}

/// An exchange: `give` moves from one bin to the other, `take` moves back.
struct Step {
    from: usize,
    to: usize,
    give: usize,
    take: Option<usize>,
    /// Load of the costlier of the two bins afterwards.
    dearer: u64,
}

impl<'a> Bins<'a> {
    fn new(costs: &'a [u64], weights: &'a [u64], num_bins: usize, room: Capacity, bin_of: &[usize]) -> Self {
        let loads = loads_of(costs, num_bins, bin_of);
        let used = loads_of(weights, num_bins, bin_of);
        let mut items = vec![Vec::new(); num_bins];
        bin_of.iter().enumerate().for_each(|(item, &bin)| items[bin].push(item));
        let by_load = loads.iter().copied().zip(0..).collect();
        Self { costs, weights, room, loads, used, items, by_load }
    }

    /// Returns the exchange that leaves the costlier of two bins cheapest, if that is cheaper than now.
    fn best_step(&mut self, from: usize, to: usize) -> Option<Step> {
        let costs = self.costs;
        for bin in [from, to] {
            self.items[bin].sort_unstable_by_key(|&item| (std::cmp::Reverse(costs[item]), item));
        }
        let (dear, cheap) = (self.loads[from], self.loads[to]);
        let half = (dear - cheap) / 2;
        let theirs = &self.items[to];
        let mut best: Option<Step> = None;
        // What levels the bins in exchange for an item falls as the item does.
        let mut at = 0;
        for &give in &self.items[from] {
            let wanted = costs[give].saturating_sub(half);
            while at < theirs.len() && costs[theirs[at]] > wanted {
                at += 1;
            }
            let near = [at.checked_sub(1), Some(at)].into_iter().flatten().filter_map(|at| theirs.get(at).copied());
            for take in near.map(Some).chain([None]) {
                let back = take.map_or(0, |item| costs[item]);
                if back >= costs[give] || !self.has_room(from, to, give, take) {
                    continue;
                }
                let passed = costs[give] - back;
                let dearer = (dear - passed).max(cheap + passed);
                if dearer < best.as_ref().map_or(dear, |best| best.dearer) {
                    best = Some(Step { from, to, give, take, dearer });
                }
            }
        }
        best
    }

    fn has_room(&self, from: usize, to: usize, give: usize, take: Option<usize>) -> bool {
        let back = take.map_or(0, |item| self.weights[item]);
        let given = self.weights[give];
        let counts = take.is_some() || self.items[to].len() < self.room.count;
        counts && self.used[to] + given <= self.room.weight + back && self.used[from] + back <= self.room.weight + given
    }

    fn apply(&mut self, step: &Step, bin_of: &mut [usize]) {
        let ways = [(Some(step.give), step.from, step.to), (step.take, step.to, step.from)];
        for (item, from, to) in ways {
            let Some(item) = item else { continue };
            for bin in [from, to] {
                self.by_load.remove(&(self.loads[bin], bin));
            }
            self.items[from].retain(|&other| other != item);
            self.items[to].push(item);
            self.loads[from] -= self.costs[item];
            self.loads[to] += self.costs[item];
            self.used[from] -= self.weights[item];
            self.used[to] += self.weights[item];
            for bin in [from, to] {
                self.by_load.insert((self.loads[bin], bin));
            }
            bin_of[item] = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::longest_first::{best_makespan, longest_first};
    use super::*;
    use proptest::prelude::*;

    fn makespan(costs: &[u64], num_bins: usize, bin_of: &[usize]) -> u64 {
        loads_of(costs, num_bins, bin_of).into_iter().max().unwrap()
    }

    proptest! {
        #[test]
        fn within_grahams_bound_of_the_best(costs in prop::collection::vec(1_u64..50, 1..7), num_bins in 1_usize..4) {
            let found = makespan(&costs, num_bins, &balance(&costs, num_bins));
            let best = best_makespan(&costs, num_bins);
            prop_assert!(found * 3 * num_bins as u64 <= best * (4 * num_bins as u64 - 1), "{found} > {best}");
        }

        #[test]
        fn never_worse_and_rooms_are_kept(
            items in prop::collection::vec((0_u64..500, 0_u64..20), 1..80),
            num_bins in 1_usize..12,
            weight in 40_u64..200,
            count in 6_usize..20,
        ) {
            let (costs, weights): (Vec<_>, Vec<_>) = items.into_iter().unzip();
            let room = Capacity { weight, count };
            if let Some(first) = longest_first(&costs, &weights, num_bins, room) {
                let mut bin_of = first.clone();
                refine(&costs, &weights, num_bins, room, &mut bin_of);
                prop_assert!(makespan(&costs, num_bins, &bin_of) <= makespan(&costs, num_bins, &first));
                prop_assert!(loads_of(&weights, num_bins, &bin_of).iter().all(|&used| used <= weight));
                let ones = vec![1; costs.len()];
                prop_assert!(loads_of(&ones, num_bins, &bin_of).iter().all(|&used| used <= count as u64));
            }
        }

        #[test]
        fn no_bin_is_an_item_above_the_mean(costs in prop::collection::vec(0_u64..1000, 1..200), num_bins in 1_usize..20) {
            let total: u64 = costs.iter().sum();
            let largest = costs.iter().copied().max().unwrap();
            let found = makespan(&costs, num_bins, &balance(&costs, num_bins));
            prop_assert!(found <= (total / num_bins as u64 + largest).max(largest));
        }
    }

    #[test]
    fn an_item_above_the_mean_lies_alone() {
        let costs = [1000, 30, 20, 10, 30, 20, 10];
        let bin_of = balance(&costs, 3);
        let mut loads = loads_of(&costs, 3, &bin_of);
        loads.sort_unstable();
        assert_eq!(loads, [60, 60, 1000]);
    }

    #[test]
    fn swaps_mend_what_longest_first_gets_wrong() {
        // Longest first: 7 + 4 + 4 and 6 + 5 against 7 + 6 and 5 + 4 + 4.
        let costs = [7, 6, 5, 4, 4];
        let bin_of = balance(&costs, 2);
        assert_eq!(makespan(&costs, 2, &bin_of), 13);
    }
}
