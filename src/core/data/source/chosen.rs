//! `max_samples`: which samples of a data set are used. A function of the two numbers of samples alone, so that neither the seed nor the
//! machine plays a part, and nothing is held.

use crate::config::Select;
use crate::rng::Rng;

/// The samples of a data set that are used, in its order.
#[derive(Clone, Copy, Debug)]
pub struct Chosen {
    count: u64,
    /// Samples in the set.
    of: u64,
    select: Select,
}

impl Chosen {
    /// Chooses `most` samples of a set of `of`, or all where it has no more; `None`: all.
    pub fn new(most: Option<u64>, select: Select, of: u64) -> Self {
        Self { count: most.map_or(of, |most| most.max(1).min(of)), of, select }
    }

    /// Returns the number of samples that are chosen.
    pub fn len(self) -> u64 {
        self.count
    }

    /// Returns whether the chosen samples are the first ones of the set, or all.
    fn is_begin(self) -> bool {
        self.select == Select::First || self.count == self.of
    }

    /// Returns the place in the set of the chosen sample with this number.
    pub fn index(self, number: u64) -> u64 {
        if self.is_begin() {
            return number;
        }
        let (begin, end) = (self.begin(number), self.begin(number + 1));
        begin + Rng::new(&[0x6368_6f73, self.of, self.count, number]).below(end - begin)
    }

    /// Returns where one of as many parts as there are chosen samples begins.
    fn begin(self, part: u64) -> u64 {
        (u128::from(part) * u128::from(self.of) / u128::from(self.count)) as u64
    }

    /// Returns the number of chosen samples before a place in the set.
    pub fn before(self, place: u64) -> u64 {
        if self.is_begin() {
            return place.min(self.count);
        }
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.index(middle) < place { low = middle + 1 } else { high = middle }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chosen_samples_are_different_ones_in_order_and_are_counted(
            of in 1u64..200, most in 1u64..250, is_random: bool,
        ) {
            let chosen = Chosen::new(Some(most), if is_random { Select::Random } else { Select::First }, of);
            let places: Vec<u64> = (0..chosen.len()).map(|number| chosen.index(number)).collect();
            prop_assert_eq!(places.len() as u64, most.min(of));
            prop_assert!(places.is_sorted_by(|one, next| one < next) && places.iter().all(|&place| place < of));
            for place in 0..=of {
                prop_assert_eq!(chosen.before(place), places.iter().filter(|&&other| other < place).count() as u64);
            }
            prop_assert!(is_random || places.iter().copied().eq(0..chosen.len()));
        }
    }

    #[test]
    fn random_samples_are_from_all_parts_and_always_the_same() {
        let places = |of| {
            let chosen = Chosen::new(Some(4), Select::Random, of);
            (0..4).map(|number| chosen.index(number)).collect::<Vec<_>>()
        };
        let found = places(4000);
        assert!(found.iter().zip(0..).all(|(&place, part)| place / 1000 == part), "{found:?}");
        assert_eq!(found, places(4000));
        assert_ne!(found, [0, 1000, 2000, 3000]);
        assert_eq!(places(u64::MAX).len(), 4);
        assert_eq!(Chosen::new(None, Select::Random, 7).len(), 7);
    }
}
