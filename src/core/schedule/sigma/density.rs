//! Distributions of noise levels, given by their quantiles. Level 0 is data, level 1 is noise.

use super::{beta, normal};
use crate::config::{Density, NoiseLevels};

/// Number of levels of `discrete`.
const GRID: f64 = 1000.0;

/// Distribution of noise levels.
#[derive(Clone, Debug, PartialEq)]
pub enum TimeSampler {
    /// All levels equally likely.
    Uniform,
    /// The sigmoid of a normal variable (Esser et al. 2024).
    LogitNormal { mean: f64, std: f64 },
    /// `1 − u − scale · (cos²(πu/2) − 1 + u)` of an even number u (Esser et al. 2024); it falls with u where the scale is -1
    /// to 2 / (π − 2).
    Mode { scale: f64 },
    /// `offset + scale · b` with b of Beta(alpha, beta); Pi0 has 1.5, 1, 0.999 and 0.001.
    Beta { alpha: f64, beta: f64, scale: f64, offset: f64 },
    /// One of the levels 0.001, 0.002 to 1.
    Discrete,
    /// `s·t / (1 + (s − 1)·t)` of another sampler's level t: above 1, s moves levels toward noise, as large pictures need it.
    Shift { shift: f64, of: Box<TimeSampler> },
}

impl TimeSampler {
    /// Returns the distribution of a config before its shift.
    pub(super) fn of(levels: &NoiseLevels) -> Self {
        let (mean, std) = (levels.mean.unwrap_or(0.0), levels.std.unwrap_or(1.0));
        match levels.density {
            Density::Uniform => Self::Uniform,
            Density::LogitNormal => Self::LogitNormal { mean, std },
            Density::Mode => Self::Mode { scale: levels.scale.unwrap_or(1.29) },
            Density::Beta => Self::Beta {
                alpha: levels.alpha.unwrap_or(1.0),
                beta: levels.beta.unwrap_or(1.0),
                scale: 1.0,
                offset: 0.0,
            },
            // σ is the sigmoid of minus half the logarithm.
            Density::Logsnr => Self::LogitNormal { mean: -mean / 2.0, std: std / 2.0 },
            Density::Discrete => Self::Discrete,
        }
    }

    /// Returns the same distribution with its levels shifted toward noise: `σ' = s·σ / (1 + (s − 1)·σ)`.
    pub(super) fn shifted(self, shift: f64) -> Self {
        if shift == 1.0 { self } else { Self::Shift { shift, of: Box::new(self) } }
    }

    /// Returns the level at quantile `u`, in (0, 1), so that uniform numbers u give levels with this distribution.
    pub fn at(&self, u: f64) -> f64 {
        match self {
            Self::Uniform => u,
            Self::LogitNormal { mean, std } => 1.0 / (1.0 + (-(mean + std * normal::quantile(u))).exp()),
            Self::Mode { scale } => u - scale * ((std::f64::consts::FRAC_PI_2 * u).sin().powi(2) - u),
            Self::Beta { alpha, beta, scale, offset } => offset + scale * beta::quantile(*alpha, *beta, u),
            Self::Discrete => ((u * GRID).floor() + 1.0) / GRID,
            Self::Shift { shift, of } => {
                let t = of.at(u);
                shift * t / (1.0 + (shift - 1.0) * t)
            }
        }
    }
}
