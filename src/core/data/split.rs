//! `data.val_size`: which samples of each data set are set aside for evaluation. A function of the sets' sizes alone, so that
//! neither the seed nor the machine plays a part, and no sample is ever trained on and evaluated.

use std::collections::BTreeSet;

use super::error::DataError;
use crate::rng::permute;

/// Samples that are set aside, by their indices in each data set, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split(Vec<Vec<u64>>);

impl Split {
    /// Below 1 `val_size` is a part of each set, else a number of samples of all sets together, in proportion to their sizes.
    ///
    /// # Errors
    /// Nothing is set aside, or nothing is left of a set.
    pub fn new(lens: &[u64], val_size: f64) -> Result<Self, DataError> {
        if val_size == 0.0 {
            return Ok(Self(vec![Vec::new(); lens.len()]));
        }
        let total: u64 = lens.iter().sum();
        let wanted = if val_size < 1.0 { val_size * total as f64 } else { val_size };
        // Up to here, counted over all sets: so the parts add up to what is wanted.
        let up_to = |len: u64| (wanted * len as f64 / total as f64).round() as u64;
        let (mut before, mut held) = (0, Vec::new());
        for (set, &len) in (0..).zip(lens) {
            let count = up_to(before + len) - up_to(before);
            before += len;
            if count >= len {
                return Err(DataError::Split { what: format!("{count} of the {len} samples of data.train.{set}") });
            }
            let indices: BTreeSet<u64> = (0..count).map(|place| permute(place, len, &[0x76616c, set])).collect();
            held.push(indices.into_iter().collect());
        }
        let split = Self(held);
        if split.len() == 0 {
            return Err(DataError::Split { what: format!("none of {total} samples") });
        }
        Ok(split)
    }

    /// Samples that are set aside.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|held| held.len() as u64).sum()
    }

    /// Returns the positions of one data set.
    pub fn of(&self, set: usize) -> &[u64] {
        &self.0[set]
    }

    /// Sample `index` of those of a set that are left for training, as an index of the set.
    pub fn train(&self, set: usize, index: u64) -> u64 {
        let held = self.of(set);
        // Of the samples before the n-th that is set aside, n are gone.
        let (mut low, mut high) = (0, held.len());
        while low < high {
            let middle = (low + high) / 2;
            if held[middle] - middle as u64 <= index { low = middle + 1 } else { high = middle }
        }
        index + low as u64
    }

    /// Sample `position` of all that are set aside: its set and index.
    pub fn held(&self, position: u64) -> (usize, u64) {
        let mut rest = position as usize;
        for (set, held) in self.0.iter().enumerate() {
            match held.get(rest) {
                Some(&index) => return (set, index),
                None => rest -= held.len(),
            }
        }
        panic!("sample {position} of {} that are set aside", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_sample_is_trained_on_or_set_aside(lens in prop::collection::vec(2u64..60, 1..4), part in 0.1f64..0.4) {
            let Ok(split) = Split::new(&lens, part) else { return Ok(()) };
            let held: BTreeSet<(usize, u64)> = (0..split.len()).map(|position| split.held(position)).collect();
            prop_assert_eq!(held.len() as u64, split.len());
            prop_assert_eq!(split.len(), (part * lens.iter().sum::<u64>() as f64).round() as u64);
            for (set, &len) in lens.iter().enumerate() {
                let left = len - split.of(set).len() as u64;
                let train: Vec<u64> = (0..left).map(|index| split.train(set, index)).collect();
                prop_assert!(train.is_sorted_by(|one, next| one < next) && train.iter().all(|&index| index < len));
                prop_assert!(train.iter().all(|&index| !held.contains(&(set, index))));
            }
        }
    }

    #[test]
    fn a_number_of_samples_is_exact_and_too_many_are_refused() {
        assert_eq!(Split::new(&[1000, 3000], 100.0).unwrap().len(), 100);
        assert_eq!(Split::new(&[1000, 3000], 100.0).unwrap().of(0).len(), 25);
        assert_eq!(Split::new(&[10], 0.0).unwrap().len(), 0);
        let error = |lens: &[u64], size| Split::new(lens, size).unwrap_err().to_string();
        assert!(error(&[10], 10.0).contains("data.val_size") && error(&[10, 90], 0.001).contains("none of 100"));
    }
}
