//! Plans the noise levels of a step's samples: a pure function of the run's seed, the step and the samples.
//!
//! The levels of a step are spread evenly over their density: of B samples, sample j has the quantile of (π(j) + r) / B, with a
//! permutation π and numbers r in (0, 1) that belong to seed and step. Each level has the density; two of a step never fall
//! into the same of B equally likely ranges (Kingma et al. 2021 share one r).

mod beta;
mod density;
mod normal;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::config::{Experts, NoiseLevels, Shift};
use crate::message::{SampleMeta, Sigma, StepId};
use crate::rng::{Counter, permute};

pub use density::TimeSampler;

/// Tells the random numbers of noise levels from others of the same seed and step.
const PURPOSE: u64 = 0x0073_6967_6d61;
/// Halvings of an interval, after which it has no inner double.
const HALVINGS: u32 = 60;

/// Values of [`SampleMeta::route`] for the transformer of high noise, and for that of low noise where there are two.
pub const HIGH_NOISE: u32 = 0;
pub const LOW_NOISE: u32 = 1;

/// The properties of a diffusion model that planning needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowShape {
    /// Noise level from which on the high-noise transformer computes, if the model has two.
    pub boundary: Option<f64>,
    /// The shift of `train.sigma.shift: auto`.
    pub auto_shift: AutoShift,
}

/// A shift that grows with the picture: its logarithm is linear in the number of tokens, through two points of (tokens, logarithm).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AutoShift {
    pub from: (f64, f64),
    pub to: (f64, f64),
}

impl AutoShift {
    /// Qwen-Image's: 2.00 for 1024², 2.30 for 1328².
    pub const QWEN: Self = Self { from: (256.0, 0.5), to: (8192.0, 0.9) };

    /// Returns the shift for a picture with this many tokens.
    pub fn at(self, num_tokens: usize) -> f64 {
        let ((x, y), (end_x, end_y)) = (self.from, self.to);
        (y + (end_y - y) / (end_x - x) * (num_tokens as f64 - x)).exp()
    }
}

/// The distribution from which the noise levels of a run are drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SigmaSpec {
    pub seed: u64,
    pub levels: NoiseLevels,
    pub shape: FlowShape,
    /// The transformers that are trained, if there are two.
    pub experts: Experts,
}

/// The levels of pictures of one size: a density, and the part of its quantiles that is used.
struct Levels {
    density: TimeSampler,
    /// The quantiles of the lowest level and of the highest.
    quantiles: (f64, f64),
    /// Both as they are.
    ends: (Sigma, Sigma),
    /// The levels of the density lie between the ends, as the whole density does between 0 and 1.
    is_squeezed: bool,
}

impl SigmaSpec {
    /// Returns the noise levels of a run with the config `levels`, or the default levels if the config has none.
    pub fn new(seed: u64, levels: Option<NoiseLevels>, experts: Option<Experts>, shape: FlowShape) -> Self {
        Self { seed, levels: levels.unwrap_or_default(), shape, experts: experts.unwrap_or(Experts::Both) }
    }

    /// Plans the noise levels of a step's samples, in the order of the batch, and routes each sample to the transformer for its
    /// level. Samples without a target are unchanged.
    pub fn plan<'a>(&self, step: StepId, samples: impl ExactSizeIterator<Item = &'a mut SampleMeta>) {
        let numbers = Counter::new(&[self.seed, step.0, PURPOSE]);
        let count = samples.len() as u64;
        let mut known: Vec<(usize, Levels)> = Vec::new();
        for (at, sample) in (0..count).zip(samples) {
            let Some(target) = &mut sample.target else { continue };
            let r = numbers.unit(at);
            let u = match self.levels.stratify {
                true => (permute(at, count, &[self.seed, step.0, PURPOSE]) as f64 + r) / count as f64,
                false => r,
            };
            let size = if self.levels.shift == Shift::Auto { target.grid.num_cells() } else { 0 };
            let found = known.iter().position(|(known, _)| *known == size).unwrap_or_else(|| {
                known.push((size, self.levels_of(size)));
                known.len() - 1
            });
            target.sigma = known[found].1.at(u);
            sample.route = self.route(target.sigma);
        }
    }

    /// Returns the transformer for a noise level, as [`SampleMeta::route`].
    pub fn route(&self, sigma: Sigma) -> u32 {
        match self.shape.boundary {
            Some(boundary) if sigma < Sigma::new(boundary as f32) => LOW_NOISE,
            _ => HIGH_NOISE,
        }
    }

    /// Returns the probability of levels above a level, for pictures with this many tokens.
    pub fn mass_above(&self, sigma: f64, num_tokens: usize) -> f64 {
        let levels = self.levels_of(num_tokens);
        let (from, to) = levels.quantiles;
        let at = quantile_of(&levels.density, Sigma::new(levels.of_density(sigma) as f32), false).clamp(from, to);
        if to > from { (to - at) / (to - from) } else { 0.0 }
    }

    /// Returns the probability of each of `count` equal ranges of levels, for pictures with this many tokens.
    pub fn histogram(&self, count: usize, num_tokens: usize) -> Vec<f64> {
        let above = |at: usize| if at == 0 { 1.0 } else { self.mass_above(at as f64 / count as f64, num_tokens) };
        (0..count).map(|at| above(at) - if at + 1 < count { above(at + 1) } else { 0.0 }).collect()
    }

    /// Checks that the transformers that are trained have noise levels.
    ///
    /// # Errors
    /// Returns the reason: all levels from `train.sigma.min` to `train.sigma.max` are those of a transformer that is not trained.
    pub fn expect_levels(&self) -> Result<(), String> {
        let (low, high) = self.ends();
        let Some(boundary) = self.shape.boundary.filter(|_| low > high) else { return Ok(()) };
        let NoiseLevels { min, max, .. } = self.levels;
        Err(match self.experts {
            Experts::Low => format!(
                "`model.experts: low` trains on noise levels below {boundary}, but `train.sigma.min` is {min}: lower it"
            ),
            _ => format!(
                "`model.experts: high` trains on noise levels from {boundary} on, but `train.sigma.max` is {max}: raise it"
            ),
        })
    }

    /// Returns the lowest and the highest level that is trained.
    fn ends(&self) -> (Sigma, Sigma) {
        let (mut low, mut high) = (Sigma::new(self.levels.min as f32), Sigma::new(self.levels.max as f32));
        match (self.shape.boundary.map(|boundary| boundary as f32), self.experts) {
            (Some(boundary), Experts::High) => low = low.max(Sigma::new(boundary)),
            (Some(boundary), Experts::Low) => high = high.min(Sigma::new(boundary.next_down())),
            _ => {}
        }
        (low, high)
    }

    fn levels_of(&self, num_tokens: usize) -> Levels {
        let shift = match self.levels.shift {
            Shift::Auto => self.shape.auto_shift.at(num_tokens),
            Shift::By(shift) => shift,
        };
        let density = TimeSampler::of(&self.levels).shifted(shift);
        let (low, high) = self.ends();
        if self.levels.squeeze {
            return Levels { density, quantiles: (0.0, 1.0), ends: (low, high), is_squeezed: true };
        }
        let from = if low == Sigma::new(0.0) { 0.0 } else { quantile_of(&density, low, false) };
        let to = if high == Sigma::new(1.0) { 1.0 } else { quantile_of(&density, high, true) };
        Levels { density, quantiles: (from, to), ends: (low, high), is_squeezed: false }
    }
}

impl Levels {
    /// Returns the level of an even number in (0, 1).
    fn at(&self, u: f64) -> Sigma {
        let (from, to) = self.quantiles;
        let sigma = self.density.at((from + u * (to - from)).clamp(f64::MIN_POSITIVE, 1.0 - f64::EPSILON / 2.0));
        let (low, high) = self.ends;
        let sigma = if self.is_squeezed { low.get() + sigma * (high.get() - low.get()) } else { sigma };
        // The ends are exact, however the quantile is rounded.
        Sigma::new(sigma as f32).clamp(low, high)
    }

    /// Returns the level of the density that became this one.
    fn of_density(&self, sigma: f64) -> f64 {
        let (low, high) = (self.ends.0.get(), self.ends.1.get());
        if self.is_squeezed && high > low { ((sigma - low) / (high - low)).clamp(0.0, 1.0) } else { sigma }
    }
}

/// Returns the quantile from which on levels are at least `sigma`, or above it.
fn quantile_of(density: &TimeSampler, sigma: Sigma, above: bool) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..HALVINGS {
        let middle = 0.5 * (low + high);
        let level = Sigma::new(density.at(middle) as f32);
        if level > sigma || (level == sigma && !above) { high = middle } else { low = middle }
    }
    0.5 * (low + high)
}
