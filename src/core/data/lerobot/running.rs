//! Statistics of vectors as they come, one pass and bounded memory: exact but for quantiles, which are those of a histogram of
//! 5,000 bins over the whole range, as lerobot's and openpi's are.

use super::stats::FeatureStats;

/// Bins of a histogram.
const BINS: usize = 5000;
/// Quantiles by name.
const QUANTILES: [(&str, f64); 5] = [("q01", 0.01), ("q10", 0.1), ("q50", 0.5), ("q90", 0.9), ("q99", 0.99)];

/// Statistics of vectors of one width.
pub struct Running {
    count: u64,
    numbers: Vec<Number>,
}

/// The statistics of one number of the vectors.
#[derive(Clone)]
struct Number {
    min: f64,
    max: f64,
    mean: f64,
    /// Sum of squared distances from the mean.
    spread: f64,
    /// Counts of bins of equal width from `low` on.
    bins: Vec<u64>,
    low: f64,
    width: f64,
}

impl Running {
    /// Begins statistics of vectors of `width` numbers.
    pub fn new(width: usize) -> Self {
        let number = Number {
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            mean: 0.0,
            spread: 0.0,
            bins: Vec::new(),
            low: 0.0,
            width: 0.0,
        };
        Self { count: 0, numbers: vec![number; width] }
    }

    /// Adds vectors one after the other.
    pub fn add<T: Copy + Into<f64>>(&mut self, vectors: &[T]) {
        let width = self.numbers.len();
        if width == 0 || vectors.is_empty() {
            return;
        }
        for (at, number) in self.numbers.iter_mut().enumerate() {
            let values = || vectors.iter().skip(at).step_by(width).map(|&value| value.into());
            let (min, max) = values().fold((number.min, number.max), |(min, max), it| (min.min(it), max.max(it)));
            number.widen(min, max);
            let mut count = self.count as f64;
            for value in values() {
                count += 1.0;
                let off = value - number.mean;
                number.mean += off / count;
                number.spread += off * (value - number.mean);
                let bin = number.bin(value);
                number.bins[bin] += 1;
            }
        }
        self.count += (vectors.len() / width) as u64;
    }

    /// Returns the statistics; `None`: there was no vector.
    pub fn finish(&self) -> Option<FeatureStats> {
        if self.count == 0 {
            return None;
        }
        let of = |value: &dyn Fn(&Number) -> f64| self.numbers.iter().map(value).collect::<Vec<_>>();
        let mut stats = FeatureStats::from([
            ("min".to_owned(), of(&|it| it.min)),
            ("max".to_owned(), of(&|it| it.max)),
            ("mean".to_owned(), of(&|it| it.mean)),
            ("std".to_owned(), of(&|it| (it.spread / self.count as f64).sqrt())),
            ("count".to_owned(), vec![self.count as f64]),
        ]);
        for (name, part) in QUANTILES {
            stats.insert(name.to_owned(), of(&|it| it.quantile(part * self.count as f64)));
        }
        Some(stats)
    }
}

impl Number {
    /// Makes room for values from `min` to `max`; counts move to the bin of their middle.
    fn widen(&mut self, min: f64, max: f64) {
        if !self.bins.is_empty() && min >= self.min && max <= self.max {
            return;
        }
        let (old, low, width) = (std::mem::take(&mut self.bins), self.low, self.width);
        (self.min, self.max) = (min, max);
        self.low = min;
        self.width = (max - min) / BINS as f64;
        self.bins = vec![0; BINS];
        for (at, count) in old.into_iter().enumerate().filter(|(_, count)| *count > 0) {
            let bin = self.bin(low + (at as f64 + 0.5) * width);
            self.bins[bin] += count;
        }
    }

    fn bin(&self, value: f64) -> usize {
        if self.width > 0.0 { (((value - self.low) / self.width) as usize).min(BINS - 1) } else { 0 }
    }

    /// Returns the value that so many are not above, in a line within its bin.
    fn quantile(&self, wanted: f64) -> f64 {
        let mut before = 0.0;
        for (at, &count) in self.bins.iter().enumerate() {
            let count = count as f64;
            if count > 0.0 && before + count >= wanted {
                let part = ((wanted - before) / count).clamp(0.0, 1.0);
                return self.low + (at as f64 + part) * self.width;
            }
            before += count;
        }
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_those_of_all_vectors_however_they_come() {
        let vectors: Vec<f32> = (0..2000).flat_map(|at| [at as f32, (at % 7) as f32 - 3.0, 5.0]).collect();
        let all = {
            let mut running = Running::new(3);
            running.add(&vectors);
            running.finish().unwrap()
        };
        let parts = {
            let mut running = Running::new(3);
            // From the far end, so that the range grows.
            vectors.chunks(300).rev().for_each(|part| running.add(part));
            running.finish().unwrap()
        };
        for (name, expected) in [("min", 0.0), ("max", 1999.0), ("mean", 999.5), ("count", 2000.0)] {
            assert!((all[name][0] - expected).abs() < 1e-9, "{name} {}", all[name][0]);
            assert!((parts[name][0] - expected).abs() < 1e-9, "{name} {}", parts[name][0]);
        }
        assert!((all["std"][0] - ((2000.0f64.powi(2) - 1.0) / 12.0).sqrt()).abs() < 1e-6);
        for (name, expected) in [("q01", 20.0), ("q50", 1000.0), ("q99", 1980.0)] {
            // One vector is one unit, a bin is 0.4 of it.
            assert!((all[name][0] - expected).abs() < 1.5, "{name} {}", all[name][0]);
            assert!((parts[name][0] - expected).abs() < 3.0, "{name} {}", parts[name][0]);
        }
        assert_eq!((all["std"][2], all["q01"][2], all["q99"][2]), (0.0, 5.0, 5.0));
        assert!(Running::new(2).finish().is_none());
    }
}
