//! Weights of samples by the time of their noise. Time 0 is data, time 1 is noise.

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
    /// Returns the weight at a time in (0, 1].
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
