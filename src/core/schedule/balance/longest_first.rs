//! Assigns items to bins by longest processing time first (LPT).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ops::Range;

/// Number of values from which on radix sort is used.
const MANY: usize = 1024;
const DIGIT: u32 = 8;

/// Capacity of a bin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    pub weight: u64,
    pub count: usize,
}

/// Returns the bin of every item: items in order of falling cost, each into the cheapest bin with room for it (Graham's LPT, within
/// 4/3 − 1/(3 · bins) of the best makespan if room does not bind: "Bounds on multiprocessing timing anomalies", 1969). Ties go to
/// the first bin. `None`: some item fits in no bin.
///
/// `O(n log n)` if weights fall with costs, since a bin without room is then asked again only once it has room.
pub(crate) fn longest_first(costs: &[u64], weights: &[u64], num_bins: usize, room: Capacity) -> Option<Vec<usize>> {
    let mut used = vec![Capacity { weight: 0, count: 0 }; num_bins];
    let mut loads = vec![0_u64; num_bins];
    let mut cheapest: BinaryHeap<Reverse<(u64, usize)>> = (0..num_bins).map(|bin| Reverse((0, bin))).collect();
    // Bins without room for the last item, the roomiest first.
    let mut waiting: BinaryHeap<(u64, usize)> = BinaryHeap::new();
    let mut bin_of = vec![0; costs.len()];
    for item in by_falling(costs) {
        let weight = weights[item];
        while let Some(top) = waiting.peek_mut().filter(|top| top.0 >= weight) {
            let (_, bin) = PeekMut::pop(top);
            cheapest.push(Reverse((loads[bin], bin)));
        }
        let bin = loop {
            let mut top = cheapest.peek_mut()?;
            let Reverse((load, bin)) = *top;
            if used[bin].count >= room.count {
                PeekMut::pop(top);
            } else if used[bin].weight + weight > room.weight {
                PeekMut::pop(top);
                waiting.push((room.weight - used[bin].weight, bin));
            } else {
                *top = Reverse((load + costs[item], bin));
                break bin;
            }
        };
        loads[bin] += costs[item];
        used[bin].weight += weight;
        used[bin].count += 1;
        bin_of[item] = bin;
    }
    Some(bin_of)
}

/// Works like [`longest_first`] for bins without capacity limits.
pub(super) fn longest_first_anywhere(costs: &[u64], num_bins: usize) -> Vec<usize> {
    let bits = usize::BITS - num_bins.leading_zeros();
    if bits > costs.iter().sum::<u64>().leading_zeros() {
        let room = Capacity { weight: 0, count: costs.len().max(1) };
        return longest_first(costs, &vec![0; costs.len()], num_bins, room).expect("bins hold any number of items");
    }
    // Load and bin in one word: the heap of thousands of bins stays in the nearest cache.
    let mut cheapest: BinaryHeap<Reverse<u64>> = (0..num_bins as u64).map(Reverse).collect();
    let mut bin_of = vec![0; costs.len()];
    for item in by_falling(costs) {
        let mut top = cheapest.peek_mut().expect("there is a bin");
        bin_of[item] = (top.0 & ((1 << bits) - 1)) as usize;
        top.0 += costs[item] << bits;
    }
    bin_of
}

/// Returns indices in order of falling value; ties in ascending order.
pub(crate) fn by_falling(values: &[u64]) -> Vec<usize> {
    let largest = values.iter().copied().max().unwrap_or(0);
    let bits = usize::BITS - values.len().leading_zeros();
    if bits > largest.leading_zeros() {
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_unstable_by_key(|&at| (Reverse(values[at]), at));
        return order;
    }
    // Value and index in one word sort several times as fast.
    let mut order: Vec<u64> = values.iter().zip(0..).map(|(&value, at)| ((largest - value) << bits) | at).collect();
    if order.len() < MANY {
        order.sort_unstable();
    } else {
        // Indices ascend already.
        order = by_digits(order, bits..u64::BITS - largest.leading_zeros() + bits);
    }
    order.into_iter().map(|key| (key & ((1 << bits) - 1)) as usize).collect()
}

/// Sorts stably by these bits: one pass per digit, the last digit first (LSD radix sort).
fn by_digits(mut values: Vec<u64>, bits: Range<u32>) -> Vec<u64> {
    let mut sorted = vec![0; values.len()];
    for shift in bits.step_by(DIGIT as usize) {
        let digit = |value: u64| (value >> shift) as usize % (1 << DIGIT);
        let mut counts = [0; 1 << DIGIT];
        values.iter().for_each(|&value| counts[digit(value)] += 1);
        let mut sum = 0;
        let mut places = counts.map(|count: usize| {
            sum += count;
            sum - count
        });
        for &value in &values {
            let place = &mut places[digit(value)];
            sorted[*place] = value;
            *place += 1;
        }
        std::mem::swap(&mut values, &mut sorted);
    }
    values
}

/// Returns the least makespan over every assignment.
#[cfg(test)]
pub(super) fn best_makespan(costs: &[u64], num_bins: usize) -> u64 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Balances by the definition: every bin is asked, the cheapest first.
    fn plainly(costs: &[u64], weights: &[u64], num_bins: usize, room: Capacity) -> Option<Vec<usize>> {
        let mut order: Vec<usize> = (0..costs.len()).collect();
        order.sort_by_key(|&item| (Reverse(costs[item]), item));
        let mut used = vec![Capacity { weight: 0, count: 0 }; num_bins];
        let mut by_cost: BTreeSet<(u64, usize)> = (0..num_bins).map(|bin| (0, bin)).collect();
        let mut bin_of = vec![0; costs.len()];
        for item in order {
            let fits = |used: &Capacity| used.weight + weights[item] <= room.weight && used.count < room.count;
            let &(cost, bin) = by_cost.iter().find(|(_, bin)| fits(&used[*bin]))?;
            by_cost.remove(&(cost, bin));
            by_cost.insert((cost + costs[item], bin));
            used[bin].weight += weights[item];
            used[bin].count += 1;
            bin_of[item] = bin;
        }
        Some(bin_of)
    }

    proptest! {
        #[test]
        fn heaps_find_what_asking_every_bin_finds(
            items in prop::collection::vec((0_u64..50, 0_u64..20), 0..60),
            num_bins in 1_usize..12,
            weight in 10_u64..80,
            count in 0_usize..12,
        ) {
            let (costs, weights): (Vec<_>, Vec<_>) = items.into_iter().unzip();
            let room = Capacity { weight, count };
            let found = longest_first(&costs, &weights, num_bins, room);
            prop_assert_eq!(found, plainly(&costs, &weights, num_bins, room));
            let free = Capacity { weight: 0, count: costs.len() + 1 };
            let anywhere = longest_first(&costs, &vec![0; costs.len()], num_bins, free).unwrap();
            prop_assert_eq!(longest_first_anywhere(&costs, num_bins), anywhere);
            let large: Vec<u64> = costs.iter().map(|cost| cost << 52).collect();
            prop_assert_eq!(longest_first_anywhere(&large, num_bins), longest_first_anywhere(&costs, num_bins));
        }

        #[test]
        fn small_and_large_values_sort_alike(values in prop::collection::vec(0_u64..9, 0..40)) {
            let large: Vec<u64> = values.iter().map(|value| value + (u64::MAX - 9)).collect();
            let order = by_falling(&values);
            prop_assert!(order.is_sorted_by_key(|&at| (Reverse(values[at]), at)));
            prop_assert_eq!(by_falling(&large), order);
        }

        #[test]
        fn digits_sort_as_comparing_does(values in prop::collection::vec(0_u64..1 << 20, 0..200)) {
            let mut sorted: Vec<u64> = values.iter().zip(0..).map(|(value, at)| value << 10 | at).collect();
            let ours = by_digits(sorted.clone(), 10..30);
            sorted.sort_unstable();
            prop_assert_eq!(ours, sorted);
        }

        #[test]
        fn longest_first_is_within_grahams_bound(
            costs in prop::collection::vec(1_u64..50, 1..7),
            num_bins in 1_usize..4,
        ) {
            let free = Capacity { weight: 0, count: costs.len() };
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

    }

    #[test]
    fn no_room_is_said() {
        assert!(longest_first(&[1, 1, 1], &[6, 6, 6], 2, Capacity { weight: 10, count: 9 }).is_none());
        assert!(longest_first(&[1, 1, 1], &[1, 1, 1], 2, Capacity { weight: 10, count: 1 }).is_none());
    }
}
