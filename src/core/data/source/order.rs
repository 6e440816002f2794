//! The order in which the samples of one data set are visited. Blocks follow in a random order, another one each epoch; samples are mixed
//! within a window of blocks. So every sample is visited once an epoch and only a window's blocks are open at a time.

use std::sync::{Arc, Mutex, PoisonError};

use crate::rng::{Rng, permute};

/// The order of one data set.
#[derive(Debug)]
pub struct Order {
    /// Samples before each block, and all of them.
    before: Vec<u64>,
    window: usize,
    /// The epochs asked last: a function of the key, remembered.
    epochs: Mutex<Vec<(Vec<u64>, Arc<Epoch>)>>,
}

#[derive(Debug)]
struct Epoch {
    /// Blocks as they follow.
    blocks: Vec<u32>,
    /// Samples before each of these, and all of them.
    before: Vec<u64>,
}

impl Order {
    /// `lens`: samples of each block. `window`: blocks whose samples are mixed with each other.
    pub fn new(lens: &[u64], window: usize) -> Self {
        Self { before: sums(lens.iter().copied()), window: window.max(1), epochs: Mutex::default() }
    }

    /// Returns the number of samples in all blocks.
    pub fn len(&self) -> u64 {
        self.before[self.before.len() - 1]
    }

    /// Returns which sample comes at place `draw` of the epoch that belongs to `key`.
    pub fn index(&self, draw: u64, key: &[u64]) -> u64 {
        if self.before.len() == 2 {
            return permute(draw, self.len(), key);
        }
        let epoch = self.epoch(key);
        let at = epoch.before.partition_point(|&before| before <= draw) - 1;
        let window = at / self.window;
        let first = window * self.window;
        let last = (first + self.window).min(epoch.blocks.len());
        let (begin, end) = (epoch.before[first], epoch.before[last]);
        let drawn = begin + permute(draw - begin, end - begin, &[key, &[window as u64]].concat());
        let at = epoch.before.partition_point(|&before| before <= drawn) - 1;
        self.before[epoch.blocks[at] as usize] + drawn - epoch.before[at]
    }

    fn epoch(&self, key: &[u64]) -> Arc<Epoch> {
        let mut epochs = self.epochs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, epoch)) = epochs.iter().find(|(known, _)| known == key) {
            return epoch.clone();
        }
        let blocks = permute_all(self.before.len() - 1, &[key, &[0x626c_6f63]].concat());
        let lens = blocks.iter().map(|&block| self.before[block as usize + 1] - self.before[block as usize]);
        let epoch = Arc::new(Epoch { before: sums(lens), blocks });
        if epochs.len() == 2 {
            epochs.remove(0);
        }
        epochs.push((key.to_vec(), epoch.clone()));
        epoch
    }
}

impl Clone for Order {
    fn clone(&self) -> Self {
        Self { before: self.before.clone(), window: self.window, epochs: Mutex::default() }
    }
}

/// Sums of the first 0, 1, 2, … of them.
pub fn sums(lens: impl Iterator<Item = u64>) -> Vec<u64> {
    std::iter::once(0)
        .chain(lens.scan(0, |sum, len| {
            Some({
                *sum += len;
                *sum
            })
        }))
        .collect()
}

/// Returns a random order of `0..len` that belongs to `key`.
pub fn permute_all(len: usize, key: &[u64]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..len as u32).collect();
    shuffle_in_place(&mut order, &mut Rng::new(key));
    order
}

/// Shuffles by Fisher and Yates: every order is as likely.
pub fn shuffle_in_place(order: &mut [u32], rng: &mut Rng) {
    for last in (1..order.len()).rev() {
        order.swap(last, rng.below(last as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_sample_is_visited_once_and_few_blocks_are_open(
            lens in prop::collection::vec(0u64..30, 1..20), window in 1usize..6, epoch: u64,
        ) {
            let order = Order::new(&lens, window);
            let visited: Vec<u64> = (0..order.len()).map(|draw| order.index(draw, &[3, epoch])).collect();
            let mut sorted = visited.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..order.len()).collect::<Vec<_>>());
            // At any place, in any order: a function of the place.
            for draw in (0..order.len()).rev() {
                prop_assert_eq!(Order::new(&lens, window).index(draw, &[3, epoch]), visited[draw as usize]);
            }
            // Blocks change in groups of the window.
            let bounds = sums(lens.iter().copied());
            let blocks: Vec<usize> = visited.iter().map(|&at| bounds.partition_point(|&before| before <= at) - 1).collect();
            let held = |at: usize| {
                let later: std::collections::BTreeSet<_> = blocks[at..].iter().collect();
                blocks[..at].iter().collect::<std::collections::BTreeSet<_>>().intersection(&later).count()
            };
            prop_assert!((0..blocks.len()).all(|at| held(at) <= window));
        }
    }

    #[test]
    fn epochs_differ_and_one_block_is_shuffled_as_a_whole() {
        let order = Order::new(&[4, 4, 4, 4], 2);
        let of = |key: u64| (0..16).map(|draw| order.index(draw, &[key])).collect::<Vec<_>>();
        assert_ne!(of(1), of(2));
        assert_eq!(Order::new(&[100], 1).index(7, &[5, 0, 2]), permute(7, 100, &[5, 0, 2]));
    }
}
