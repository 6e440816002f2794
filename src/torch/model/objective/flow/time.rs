//! The time of a sample's noise: how it is drawn, and how much a sample counts at it. Time 0 is data, time 1 is noise.

use tch::Tensor;

use super::beta;

/// Says how likely each time is.
#[derive(Clone, Debug, PartialEq)]
pub enum TimeSampler {
    /// All times alike.
    Uniform,
    /// The sigmoid of a normal number (Esser et al. 2024).
    LogitNormal { mean: f64, std: f64 },
    /// `offset + scale · b` with b of Beta(alpha, beta); Pi0 has 1.5, 1, 0.999 and 0.001.
    Beta { alpha: f64, beta: f64, scale: f64, offset: f64 },
    /// `s·t / (1 + (s − 1)·t)` of another sampler's time t: above 1, s moves times towards noise, as large pictures need it.
    Shift { shift: f64, of: Box<TimeSampler> },
}

impl TimeSampler {
    /// The time that belongs to `u`, in (0, 1): the sampler's quantile, so that even numbers u make even use of the times.
    pub fn at(&self, u: f64) -> f64 {
        match self {
            TimeSampler::Uniform => u,
            TimeSampler::LogitNormal { mean, std } => {
                let z = Tensor::from(u).special_ndtri().double_value(&[]);
                1.0 / (1.0 + (-(mean + std * z)).exp())
            }
            TimeSampler::Beta { alpha, beta, scale, offset } => offset + scale * beta::quantile(*alpha, *beta, u),
            TimeSampler::Shift { shift, of } => {
                let t = of.at(u);
                shift * t / (1.0 + (shift - 1.0) * t)
            }
        }
    }
}

/// Says how much a sample counts at its time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum TimeWeight {
    /// The same at all times.
    #[default]
    Even,
    /// A bell around 1/2 without its value at the ends, 1 on the mean of 1000 even times (DiffSynth).
    Bell,
    /// `2 / (π (1 − 2t + 2t²))`, 1 on the mean (Esser et al. 2024).
    CosMap,
    /// `min(((1 − t) / t)², gamma) · t²` (Hang et al. 2023, for velocities).
    MinSnr { gamma: f64 },
    /// `1 / t²`.
    SigmaSqrt,
    /// `1 + slope · t` (NeMo).
    Linear { slope: f64 },
}

impl TimeWeight {
    /// The weight at a time in (0, 1].
    pub fn at(self, time: f64) -> f64 {
        match self {
            TimeWeight::Even => 1.0,
            TimeWeight::Bell => {
                let bell = |t: f64| (-2.0 * ((1000.0 * t - 500.0) / 1000.0).powi(2)).exp();
                let mean = (1..=1000).map(|at| bell(f64::from(at) / 1000.0) - bell(1.0)).sum::<f64>() / 1000.0;
                (bell(time) - bell(1.0)) / mean
            }
            TimeWeight::CosMap => 2.0 / (std::f64::consts::PI * (1.0 - 2.0 * time + 2.0 * time * time)),
            TimeWeight::MinSnr { gamma } => ((1.0 - time) / time).powi(2).min(gamma) * time * time,
            TimeWeight::SigmaSqrt => (time * time).recip(),
            TimeWeight::Linear { slope } => 1.0 + slope * time,
        }
    }
}
