//! Numbers brought to the range that a policy learns in, and back, as lerobot's normalizer does in float32.

use crate::config::Normalization;
use crate::data::lerobot::FeatureStats;

/// Takes the place of a range of 0, and is added to a deviation.
const EPSILON: f32 = 1e-8;
/// A range, or a deviation, below which a number is called constant.
const CONSTANT: f64 = 1e-6;

/// Normalizes vectors of one feature.
#[derive(Clone, Debug, PartialEq)]
pub struct Normalizer {
    mode: Normalization,
    /// The mean, or the bound that becomes -1; by number.
    low: Vec<f32>,
    /// The deviation, or the bound that becomes 1.
    high: Vec<f32>,
    /// Numbers end at -1 and 1, and those without a range are 0 (GR00T).
    bounded: bool,
}

impl Normalizer {
    /// Creates the normalizer from the statistics of a feature of `width` numbers; those of a chunk of several steps may differ from step
    /// to step.
    ///
    /// # Errors
    /// The reason: a statistic is missing, of another width or not finite, or a range or deviation is below 0.
    pub fn new(mode: Normalization, stats: Option<&FeatureStats>, width: usize) -> Result<Self, String> {
        let Some([low, high]) = needed(mode) else {
            return Ok(Self { mode, low: Vec::new(), high: Vec::new(), bounded: false });
        };
        let stat = |name: &str| {
            let values = stats.and_then(|stats| stats.get(name)).ok_or_else(|| format!("has no {name}"))?;
            let values: Vec<f32> = values.iter().map(|&value| value as f32).collect();
            match values.len() == width && values.iter().all(|value| value.is_finite()) {
                true => Ok(values),
                false => Err(format!("has a {name} that is not {width} finite numbers")),
            }
        };
        let (low_values, high_values) = (stat(low)?, stat(high)?);
        // A scale the other way around would turn what is learned around. Bounds of a constant may differ by rounding.
        let is_turned = |(low, high): (&f32, &f32)| match mode {
            Normalization::MeanStd => *high < 0.0,
            _ => low - high > CONSTANT as f32 * low.abs().max(1.0),
        };
        match low_values.iter().zip(&high_values).position(is_turned) {
            Some(at) if mode == Normalization::MeanStd => Err(format!("has a {high} below 0 for number {at}")),
            Some(at) => Err(format!("has a {low} above its {high} for number {at}")),
            None => Ok(Self { mode, low: low_values, high: high_values, bounded: false }),
        }
    }

    /// Returns the same normalizer for numbers that end at -1 and 1; those without a range become 0.
    #[must_use]
    pub fn bounded(self) -> Self {
        Self { bounded: true, ..self }
    }

    /// Returns the bounds that become -1 and 1, by number.
    pub fn bounds(&self) -> [&[f32]; 2] {
        [&self.low, &self.high]
    }

    /// Places of numbers that are the same in all of the data, and that a policy therefore cannot learn a scale of.
    pub fn constants(&self) -> Vec<usize> {
        let range = |at: &usize| match self.mode {
            Normalization::MeanStd => f64::from(self.high[*at]),
            _ => f64::from(self.high[*at]) - f64::from(self.low[*at]),
        };
        (0..self.low.len()).filter(|at| range(at) < CONSTANT).collect()
    }

    /// Works like [`Normalizer::constants`] for a chunk of steps of `width` numbers: those that are the same at every step.
    pub fn constants_of(&self, width: usize) -> Vec<usize> {
        let all = self.constants();
        let num_steps = self.low.len() / width.max(1);
        (0..width).filter(|at| all.iter().filter(|it| *it % width == *at).count() >= num_steps.max(1)).collect()
    }

    /// Normalizes vectors one after the other, in place.
    pub fn normalize(&self, values: &mut [f32]) {
        self.each(values, |mode, value, low, high| match mode {
            Normalization::MeanStd => (value - low) / (high + EPSILON),
            _ => 2.0 * (value - low) / range(low, high) - 1.0,
        });
        if self.bounded {
            self.each(values, |_, value, low, high| if low == high { 0.0 } else { value.clamp(-1.0, 1.0) });
        }
    }

    /// Undoes [`Normalizer::normalize`].
    pub fn restore(&self, values: &mut [f32]) {
        if self.bounded {
            self.each(values, |_, value, _, _| value.clamp(-1.0, 1.0));
        }
        self.each(values, |mode, value, low, high| match mode {
            Normalization::MeanStd => value * high + low,
            Normalization::MinMax => (value + 1.0) / 2.0 * range(low, high) + low,
            _ => (value + 1.0) * range(low, high) / 2.0 + low,
        });
    }

    fn each(&self, values: &mut [f32], with: impl Fn(Normalization, f32, f32, f32) -> f32) {
        if self.mode == Normalization::Identity {
            return;
        }
        for vector in values.chunks_mut(self.low.len().max(1)) {
            for ((value, &low), &high) in vector.iter_mut().zip(&self.low).zip(&self.high) {
                *value = with(self.mode, *value, low, high);
            }
        }
    }
}

fn range(low: f32, high: f32) -> f32 {
    let range = high - low;
    if range == 0.0 { EPSILON } else { range }
}

/// Returns the statistics that a normalization needs.
pub fn needed(mode: Normalization) -> Option<[&'static str; 2]> {
    Some(match mode {
        Normalization::Identity => return None,
        Normalization::MeanStd => ["mean", "std"],
        Normalization::MinMax => ["min", "max"],
        Normalization::Quantiles => ["q01", "q99"],
        Normalization::Quantile10 => ["q10", "q90"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats() -> FeatureStats {
        let of = |values: &[f64]| values.to_vec();
        FeatureStats::from([
            ("mean".into(), of(&[1.0, 0.0])),
            ("std".into(), of(&[2.0, 0.0])),
            ("min".into(), of(&[-4.0, 3.0])),
            ("max".into(), of(&[4.0, 3.0])),
            ("q01".into(), of(&[-2.0, 3.0])),
            ("q99".into(), of(&[2.0, 3.0])),
            ("q10".into(), of(&[-1.0, 3.0])),
            ("q90".into(), of(&[1.0, 3.0])),
        ])
    }

    #[test]
    fn every_mode_is_undone_and_quantiles_are_not_clipped() {
        for (mode, expected) in [
            (Normalization::Identity, [3.0, 3.0]),
            (Normalization::MeanStd, [1.0, 3.0 / 1e-8]),
            (Normalization::MinMax, [0.75, -1.0]),
            (Normalization::Quantiles, [1.5, -1.0]),
            (Normalization::Quantile10, [3.0, -1.0]),
        ] {
            let normalizer = Normalizer::new(mode, Some(&stats()), 2).unwrap();
            let mut values = [3.0, 3.0, -1.0, 3.0];
            normalizer.normalize(&mut values);
            assert!((values[0] - expected[0]).abs() < 1e-6, "{mode:?} {values:?}");
            assert!((values[1] - expected[1]).abs() <= expected[1].abs() * 1e-6, "{mode:?} {values:?}");
            normalizer.restore(&mut values);
            assert_eq!([values[0], values[2]], [3.0, -1.0], "{mode:?}");
            let constants = if mode == Normalization::Identity { vec![] } else { vec![1] };
            assert_eq!(normalizer.constants(), constants, "{mode:?}");
        }
    }

    #[test]
    fn bounded_numbers_end_at_one_and_constants_are_nothing() {
        let normalizer = Normalizer::new(Normalization::MinMax, Some(&stats()), 2).unwrap().bounded();
        let mut values = [3.0, 3.0, -9.0, 3.0, 5.0, 2.0];
        normalizer.normalize(&mut values);
        assert_eq!(values, [0.75, 0.0, -1.0, 0.0, 1.0, 0.0]);
        let mut values = [0.75, 0.5, -7.0, 0.0, 1.5, -1.0];
        normalizer.restore(&mut values);
        assert_eq!(values, [3.0, 3.0, -4.0, 3.0, 4.0, 3.0]);
    }

    #[test]
    fn missing_statistics_are_named() {
        let mut stats = stats();
        stats.remove("q99");
        assert_eq!(Normalizer::new(Normalization::Quantiles, Some(&stats), 2).unwrap_err(), "has no q99");
        assert_eq!(Normalizer::new(Normalization::MinMax, None, 2).unwrap_err(), "has no min");
        let error = Normalizer::new(Normalization::MinMax, Some(&stats), 3).unwrap_err();
        assert!(error.contains("not 3 finite numbers"), "{error}");
        stats.insert("std".into(), vec![2.0, 1e300]);
        let error = Normalizer::new(Normalization::MeanStd, Some(&stats), 2).unwrap_err();
        assert!(error.contains("a std that is not 2 finite numbers"), "{error}");
    }

    #[test]
    fn scales_the_other_way_around_are_refused() {
        let refused = |mode, changed: &str, value: f64| {
            let mut stats = stats();
            stats.get_mut(changed).unwrap()[1] = value;
            Normalizer::new(mode, Some(&stats), 2).err()
        };
        let error = refused(Normalization::MeanStd, "std", -1.0).unwrap();
        assert_eq!(error, "has a std below 0 for number 1");
        let error = refused(Normalization::Quantiles, "q99", 2.0).unwrap();
        assert_eq!(error, "has a q01 above its q99 for number 1");
        assert!(refused(Normalization::MinMax, "min", 3.1).is_some());
        assert_eq!(refused(Normalization::MinMax, "min", 3.0 + 1e-9), None);
    }
}
