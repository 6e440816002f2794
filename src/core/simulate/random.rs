//! Random numbers of a simulation: the same for the same key, on any machine.

use crate::rng::Rng;

/// Keeps these streams apart from those of the data.
const SALT: u64 = 0x7369_6d75_6c61_7465;

/// Draws of several distributions.
pub(super) struct Random(Rng);

impl Random {
    /// Returns a stream that belongs to these numbers alone.
    pub fn new(key: &[u64]) -> Self {
        Self(Rng::salted(SALT, key))
    }

    /// Draws a number from 0 on, below 1.
    pub fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Draws a number that is uniform in `0..bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// Draws from a normal distribution of mean 0 and deviation 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.uniform()).ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Draws from a log-normal law.
    pub fn log_normal(&mut self, median: f64, deviation: f64) -> f64 {
        median * (deviation * self.normal()).exp()
    }

    /// Draws one of the values by their weights; `None` of nothing.
    pub fn weighted(&mut self, entries: &[(u32, f64)]) -> Option<u32> {
        let mut left = self.uniform() * entries.iter().map(|&(_, weight)| weight).sum::<f64>();
        let hit = entries.iter().find(|&&(_, weight)| {
            left -= weight;
            left < 0.0
        });
        hit.or(entries.last()).map(|&(value, _)| value)
    }
}

/// Factors of durations: e to the power of a normal number, of median 1. They are drawn once and dealt out at random.
pub(super) struct Noise {
    random: Random,
    /// Empty: nothing varies.
    factors: Vec<f64>,
}

impl Noise {
    const HALF: u64 = 1 << 11;

    /// Makes factors around 1 with this deviation of their logarithms; 0: all are 1.
    pub fn new(deviation: f64, seed: u64) -> Self {
        let mut random = Random::new(&[seed]);
        let half = if deviation == 0.0 { 0 } else { Self::HALF };
        let factors = (0..half).map(|_| deviation * random.normal()).flat_map(|x| [x.exp(), (-x).exp()]).collect();
        Self { random, factors }
    }

    /// Returns the next factor.
    pub fn factor(&mut self) -> f64 {
        match self.factors.len() {
            0 => 1.0,
            len => self.factors[self.random.below(len as u64) as usize],
        }
    }
}
