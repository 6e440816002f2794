//! Skipped samples: bad ones, which end a run if there are too many, and too long ones, which do not unless `data.pack.too_long` is
//! `error`.

use crate::config::{BadSamples, TooLong};
use serde::{Deserialize, Serialize};
use std::fmt::Display;

/// Number of samples from which on the fraction of bad ones is meaningful.
pub const MIN_SEEN: u64 = 100;
/// Number of consecutive too long samples after which no usable sample is expected: the run would read forever.
const MAX_TOO_LONG_IN_ROW: u64 = 1_000_000;

/// Returns whether so many bad samples among `num_seen` end a run that allows this fraction of them.
pub fn are_too_many_bad(num_bad: u64, num_seen: u64, max_fraction: f64) -> bool {
    num_seen >= MIN_SEEN && num_bad as f64 > max_fraction * num_seen as f64
}

/// Counts samples and judges skipped ones, by the same rule in runs and evaluations.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Skipped {
    policy: BadSamples,
    too_long: TooLong,
    num_seen: u64,
    num_bad: u64,
    num_bad_in_row: usize,
    num_too_long_in_row: u64,
}

impl Skipped {
    /// Creates a counter with the limits of `data.on_bad_sample` and `data.pack.too_long`.
    pub fn new(policy: BadSamples, too_long: TooLong) -> Self {
        Self { policy, too_long, num_seen: 0, num_bad: 0, num_bad_in_row: 0, num_too_long_in_row: 0 }
    }

    /// Counts a used sample.
    pub fn used(&mut self) {
        self.num_seen += 1;
        (self.num_bad_in_row, self.num_too_long_in_row) = (0, 0);
    }

    /// Counts `sample`, with its reason, as longer than a pack.
    ///
    /// # Errors
    /// Fails if the config makes this an error, or if no usable sample is expected.
    pub fn too_long(&mut self, sample: &impl Display) -> Result<(), String> {
        self.num_too_long_in_row += 1;
        match self.too_long {
            TooLong::Error => Err(format!("{sample}, and `data.pack.too_long` is error")),
            _ if self.num_too_long_in_row > MAX_TOO_LONG_IN_ROW => {
                Err(format!("{MAX_TOO_LONG_IN_ROW} samples in a row are too long; the last: {sample}"))
            }
            _ => Ok(()),
        }
    }

    /// Counts `sample`, with its reason, as bad.
    ///
    /// # Errors
    /// Fails if there are too many bad samples.
    pub fn bad(&mut self, sample: &impl Display) -> Result<(), String> {
        self.num_seen += 1;
        self.num_bad_in_row += 1;
        self.turned_bad(sample)
    }

    /// Counts a used sample that turned out to be bad.
    ///
    /// # Errors
    /// Fails like [`Skipped::bad`].
    pub fn turned_bad(&mut self, sample: &impl Display) -> Result<(), String> {
        self.num_bad += 1;
        let BadSamples { max_consecutive, .. } = self.policy;
        let in_row = self.num_bad_in_row;
        if in_row > max_consecutive {
            return Err(format!(
                "{in_row} bad samples in a row, more than `data.on_bad_sample.max_consecutive` = {max_consecutive}; \
                 the last: {sample}"
            ));
        }
        self.fraction(sample)
    }

    /// Checks the fraction of bad samples, the last of which is `last`.
    ///
    /// # Errors
    /// Fails if it is too large.
    pub fn fraction(&self, last: &impl Display) -> Result<(), String> {
        let (num_bad, num_seen, max_fraction) = (self.num_bad, self.num_seen, self.policy.max_fraction);
        if are_too_many_bad(num_bad, num_seen, max_fraction) {
            return Err(format!(
                "{num_bad} of {num_seen} samples are bad, more than `data.on_bad_sample.max_fraction` = {max_fraction}; \
                 the last: {last}"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipped(max_consecutive: usize, too_long: TooLong) -> Skipped {
        Skipped::new(BadSamples { max_fraction: 0.01, max_consecutive }, too_long)
    }

    #[test]
    fn too_many_bad_samples_are_an_error_that_names_the_last() {
        let mut seen = skipped(2, TooLong::Skip);
        assert_eq!([seen.bad(&"a:1: why"), seen.bad(&"a:2: why")], [Ok(()), Ok(())]);
        let error = seen.bad(&"a:3: why").unwrap_err();
        assert!(error.starts_with("3 bad samples in a row") && error.ends_with("the last: a:3: why"), "{error}");
        let mut seen = skipped(9, TooLong::Skip);
        (0..97).for_each(|_| seen.used());
        assert_eq!([seen.bad(&"a:1: x"), seen.bad(&"a:2: x")], [Ok(()), Ok(())]);
        seen.used();
        assert!(seen.fraction(&"a:2: x").unwrap_err().starts_with("2 of 100 samples are bad"));
    }

    #[test]
    fn a_fraction_is_judged_from_a_hundred_samples_on() {
        assert!(!are_too_many_bad(99, 99, 0.01) && !are_too_many_bad(1, 100, 0.01) && are_too_many_bad(2, 100, 0.01));
        assert!(!are_too_many_bad(100, 100, 1.0) && are_too_many_bad(1, 100, 0.0));
    }

    #[test]
    fn samples_that_are_too_long_are_no_bad_ones() {
        let mut seen = skipped(2, TooLong::Skip);
        assert!((0..1000).all(|_| seen.too_long(&"a:1: 9 tokens").is_ok()));
        assert_eq!(seen.bad(&"a:2: x"), Ok(()));
        let error = skipped(2, TooLong::Error).too_long(&"a:1: 9 tokens").unwrap_err();
        assert_eq!(error, "a:1: 9 tokens, and `data.pack.too_long` is error");
    }
}
