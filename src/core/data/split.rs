//! `data.val_size`: which samples of each data set are set aside for evaluation, of a LeRobot set in whole episodes. A function of the
//! sets' sizes alone, so that neither the seed nor the machine plays a part, and no sample is ever trained on and evaluated.

use std::collections::BTreeSet;

use super::error::DataError;
use crate::rng::permute;

/// Samples that are set aside, by their indices in each data set, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split(Vec<Vec<u64>>);

impl Split {
    /// Sets aside of sets of so many samples. Those that have `episodes`, each of so many samples, count and give whole ones. Below 1
    /// `val_size` is a part of each set, else a number of samples of all sets together, in proportion to their sizes.
    ///
    /// # Errors
    /// Nothing is set aside, or nothing is left of a set.
    pub fn new(lens: &[u64], episodes: &[Option<Vec<u64>>], val_size: f64) -> Result<Self, DataError> {
        if val_size == 0.0 {
            return Ok(Self(vec![Vec::new(); lens.len()]));
        }
        let whole = lens.iter().zip(episodes);
        let lens: Vec<u64> = whole.map(|(&len, whole)| whole.as_ref().map_or(len, |it| it.len() as u64)).collect();
        let what = |has_episodes: bool| if has_episodes { "episodes" } else { "samples" };
        let total: u64 = lens.iter().sum();
        let wanted = if val_size < 1.0 { val_size * total as f64 } else { val_size };
        // Up to here, counted over all sets: so the parts add up to what is wanted.
        let up_to = |len: u64| (wanted * len as f64 / total as f64).round() as u64;
        let (mut before, mut held) = (0, Vec::new());
        for (set, &len) in lens.iter().enumerate() {
            let count = up_to(before + len) - up_to(before);
            before += len;
            if count >= len {
                let what = what(episodes[set].is_some());
                return Err(DataError::Split { what: format!("{count} of the {len} {what} of data.train.{set}") });
            }
            let key = [0x76616c, set as u64];
            let indices: BTreeSet<u64> = (0..count).map(|place| permute(place, len, &key)).collect();
            held.push(match &episodes[set] {
                Some(episodes) => samples_of(&indices, episodes),
                None => indices.into_iter().collect(),
            });
        }
        let split = Self(held);
        if split.len() == 0 {
            let what = what(episodes.iter().any(Option::is_some));
            return Err(DataError::Split { what: format!("none of {total} {what}") });
        }
        Ok(split)
    }

    /// Returns the number of samples that are set aside.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|held| held.len() as u64).sum()
    }

    /// Returns the positions of one data set.
    pub fn of(&self, set: usize) -> &[u64] {
        &self.0[set]
    }

    /// Returns sample `index` of those of a set that are left for training, as an index of the set.
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

    /// Returns sample `position` of all that are set aside: its set and index.
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

/// Returns the samples of these episodes, ascending, of a set with episodes of so many samples.
fn samples_of(indices: &BTreeSet<u64>, episodes: &[u64]) -> Vec<u64> {
    let (mut first, mut samples) = (0u64, Vec::new());
    for (index, &len) in (0..).zip(episodes) {
        if indices.contains(&index) {
            samples.extend(first..first + len);
        }
        first += len;
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Sets without episodes.
    fn of(lens: &[u64], val_size: f64) -> Result<Split, DataError> {
        Split::new(lens, &vec![None; lens.len()], val_size)
    }

    proptest! {
        #[test]
        fn every_sample_is_trained_on_or_set_aside(lens in prop::collection::vec(2u64..60, 1..4), part in 0.1f64..0.4) {
            let Ok(split) = of(&lens, part) else { return Ok(()) };
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
        assert_eq!(of(&[1000, 3000], 100.0).unwrap().len(), 100);
        assert_eq!(of(&[1000, 3000], 100.0).unwrap().of(0).len(), 25);
        assert_eq!(of(&[10], 0.0).unwrap().len(), 0);
        let error = |lens: &[u64], size| of(lens, size).unwrap_err().to_string();
        assert!(error(&[10], 10.0).contains("data.val_size") && error(&[10, 90], 0.001).contains("none of 100"));
    }

    #[test]
    fn episodes_are_set_aside_as_a_whole() {
        let lens: Vec<u64> = (0..20).map(|episode| 3 + episode % 4).collect();
        let total: u64 = lens.iter().sum();
        let sizes = [Some(lens.clone())];
        let before: Vec<u64> = (0..=lens.len()).map(|end| lens[..end].iter().sum()).collect();
        for (val_size, count) in [(0.25, 5), (3.0, 3)] {
            let split = Split::new(&[total], &sizes, val_size).unwrap();
            let held: BTreeSet<u64> = split.of(0).iter().copied().collect();
            let whole = before.windows(2).filter(|around| (around[0]..around[1]).all(|at| held.contains(&at)));
            let lens: Vec<u64> = whole.map(|around| around[1] - around[0]).collect();
            assert_eq!((lens.len(), lens.iter().sum::<u64>()), (count, held.len() as u64), "{val_size}");
            assert!(split.of(0).is_sorted());
        }
        let error = |val_size| Split::new(&[total], &sizes, val_size).unwrap_err().to_string();
        assert!(error(20.0).contains("20 of the 20 episodes of data.train.0"), "{}", error(20.0));
        assert!(error(0.01).contains("none of 20 episodes"), "{}", error(0.01));
    }
}
