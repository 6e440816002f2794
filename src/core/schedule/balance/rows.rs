//! Assigns packs to micro-batches after each of which all replicas synchronize.

use super::longest_first::by_falling;
use std::cmp::Reverse;

/// Returns the micro-batch and replica of every pack, for replicas that synchronize after every micro-batch and so wait for its
/// costliest pack.
///
/// Packs are taken in order of falling cost, one per replica and micro-batch: no other assignment to rows of this size has a
/// smaller sum of costliest packs, since the costliest pack of the i-th costliest row is at best the (i · replicas)-th overall.
/// Within a row, the costliest pack goes to the replica with the least load so far, which also evens out the replicas' sums.
///
/// # Panics
/// There is no replica.
pub fn sorted_rows(costs: &[u64], num_replicas: usize) -> Vec<(usize, usize)> {
    let mut places = vec![(0, 0); costs.len()];
    let mut loads: Vec<(u64, usize)> = (0..num_replicas).map(|replica| (0, replica)).collect();
    let order = by_falling(costs);
    for (row, items) in order.chunks(num_replicas).enumerate() {
        debug_assert!(items.is_sorted_by_key(|&item| Reverse(costs[item])));
        loads.sort_unstable();
        for (&item, (load, replica)) in items.iter().zip(&mut loads) {
            *load += costs[item];
            places[item] = (row, *replica);
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the least sum of the costliest of each row over every way of making rows.
    fn best(costs: &mut Vec<u64>, width: usize) -> u64 {
        let Some(last) = costs.pop() else { return 0 };
        let least = (0..1_u32 << costs.len())
            .filter(|others| others.count_ones() as usize == (width - 1).min(costs.len()))
            .map(|others| {
                let (row, mut rest): (Vec<_>, Vec<_>) =
                    costs.iter().enumerate().partition(|(at, _)| others >> at & 1 == 1);
                let costliest = row.iter().map(|(_, cost)| **cost).max().unwrap_or(0).max(last);
                costliest + best(&mut rest.drain(..).map(|(_, cost)| *cost).collect(), width)
            })
            .min();
        costs.push(last);
        least.expect("some row")
    }

    proptest! {
        #[test]
        fn no_rows_have_a_smaller_sum_of_costliest(rows in 1_usize..4, width in 1_usize..4, seed in prop::collection::vec(0_u64..50, 9)) {
            let costs = &seed[..rows * width];
            let places = sorted_rows(costs, width);
            let mut costliest = vec![0; rows];
            let mut seen = std::collections::BTreeSet::new();
            for (&cost, &(row, replica)) in costs.iter().zip(&places) {
                costliest[row] = cost.max(costliest[row]);
                prop_assert!(replica < width && seen.insert((row, replica)));
            }
            prop_assert_eq!(costliest.iter().sum::<u64>(), best(&mut costs.to_vec(), width));
        }
    }
}
