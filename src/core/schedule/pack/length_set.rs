//! A set of lengths with the nearest member below a length, in a few instructions.

/// Numbers below a bound as a tree of bitmaps, 64 to a node (a van Emde Boas tree's poor relation).
#[derive(Clone, Debug)]
pub(super) struct LengthSet {
    /// Leaves first; a bit of a level says whether the word below it is not empty.
    levels: Vec<Vec<u64>>,
}

impl LengthSet {
    /// Creates an empty set for numbers from 0 to `most`.
    pub fn new(most: usize) -> Self {
        let mut levels = Vec::new();
        let mut words = most / 64 + 1;
        loop {
            levels.push(vec![0; words]);
            if words == 1 {
                return Self { levels };
            }
            words = words.div_ceil(64);
        }
    }

    /// Adds a length. Panics if it is larger than the set allows.
    pub fn insert(&mut self, mut value: usize) {
        for level in &mut self.levels {
            let word = &mut level[value / 64];
            let was_empty = *word == 0;
            *word |= 1 << (value % 64);
            if !was_empty {
                return;
            }
            value /= 64;
        }
    }

    /// Removes a length, if it is in the set.
    pub fn remove(&mut self, mut value: usize) {
        for level in &mut self.levels {
            let word = &mut level[value / 64];
            *word &= !(1 << (value % 64));
            if *word != 0 {
                return;
            }
            value /= 64;
        }
    }

    /// Returns the largest member not above `value`.
    pub fn at_most(&self, value: usize) -> Option<usize> {
        let mut value = value.min(self.levels[0].len() * 64 - 1);
        for (height, level) in self.levels.iter().enumerate() {
            let word = level[value / 64] & (!0 >> (63 - value % 64));
            if word != 0 {
                let mut found = value / 64 * 64 + 63 - word.leading_zeros() as usize;
                for level in self.levels[..height].iter().rev() {
                    found = found * 64 + 63 - level[found].leading_zeros() as usize;
                }
                return Some(found);
            }
            value = (value / 64).checked_sub(1)?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn agrees_with_a_sorted_set(
            most in 1_usize..10_000,
            actions in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..100),
        ) {
            let (mut ours, mut sorted) = (LengthSet::new(most), BTreeSet::new());
            for (insert, at) in actions {
                let value = at.index(most + 1);
                if insert {
                    ours.insert(value);
                    sorted.insert(value);
                } else {
                    ours.remove(value);
                    sorted.remove(&value);
                }
                for near in [value.saturating_sub(1), value, value + 1, value / 2, most, 2 * most] {
                    prop_assert_eq!(ours.at_most(near), sorted.range(..=near).next_back().copied());
                }
            }
        }
    }
}
