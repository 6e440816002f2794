//! The frequencies of rotary embeddings, and how they are stretched beyond the context of pre-training.

use tch::{Device, Kind, Tensor};

/// Says how frequencies are stretched beyond the context of pre-training; names and defaults of transformers'
/// `ROPE_INIT_FUNCTIONS`.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    Default,
    /// Every frequency divided by `factor`.
    Linear {
        factor: f64,
    },
    /// NTK-aware: a larger theta for a document of more than `max_position_embeddings` tokens. Up to so many theta is as it comes, or
    /// multiplied by `alpha^(R / (R - 2))` (HunYuan).
    Dynamic {
        factor: f64,
        max_position_embeddings: i64,
        alpha: Option<f64>,
    },
    Yarn(Yarn),
    /// Ding et al. 2024: every frequency divided by a factor of its own, for documents of at most
    /// `original_max_position_embeddings` tokens and for longer ones. `attention_factor` multiplies `cos` and `sin`.
    LongRope {
        short_factor: Vec<f64>,
        long_factor: Vec<f64>,
        attention_factor: f64,
        original_max_position_embeddings: i64,
    },
    /// LLaMA 3.1: long wavelengths divided by `factor`, short ones kept, a ramp between.
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_max_position_embeddings: i64,
    },
}

/// Peng et al. 2023.
#[derive(Clone, Debug, PartialEq)]
pub struct Yarn {
    pub factor: f64,
    pub original_max_position_embeddings: i64,
    /// The attention factor of `cos` and `sin`; `None`: from `factor`, `mscale` and `mscale_all_dim`.
    pub attention_factor: Option<f64>,
    pub beta_fast: f64,
    pub beta_slow: f64,
    /// 0 where the config has none.
    pub mscale: f64,
    pub mscale_all_dim: f64,
    /// True if the ramp's ends are whole channels.
    pub truncate: bool,
}

impl Yarn {
    /// Returns the factor of `cos` and `sin`.
    pub fn table_scale(&self) -> f64 {
        match self.attention_factor {
            Some(factor) => factor,
            None if self.mscale != 0.0 && self.mscale_all_dim != 0.0 => {
                magnitude(self.factor, self.mscale) / magnitude(self.factor, self.mscale_all_dim)
            }
            None => magnitude(self.factor, 1.0),
        }
    }
}

/// Returns YaRN's growth of the attention's logits with the context.
fn magnitude(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

impl RopeScaling {
    /// Returns the factor of the softmax scale of DeepSeek's attention (`yarn_apply_mscale`): the square of the magnitude of
    /// `mscale_all_dim`.
    pub fn softmax_scale(&self) -> f64 {
        match self {
            RopeScaling::Yarn(yarn) if yarn.mscale_all_dim != 0.0 => {
                magnitude(yarn.factor, yarn.mscale_all_dim).powi(2)
            }
            _ => 1.0,
        }
    }
}

impl RopeScaling {
    /// Returns the R/2 frequencies [R/2] of `dim` = R channels in a document of `seq_len` tokens, float32 as transformers computes them,
    /// and what multiplies `cos` and `sin`.
    pub(super) fn frequencies(&self, dim: i64, theta: f64, seq_len: i64) -> (Tensor, f64) {
        match self {
            RopeScaling::Default => (frequencies(dim, theta), 1.0),
            RopeScaling::Linear { factor } => (frequencies(dim, theta) / *factor, 1.0),
            RopeScaling::Dynamic { max_position_embeddings, alpha: Some(alpha), .. }
                if seq_len <= *max_position_embeddings =>
            {
                (frequencies(dim, theta * alpha.powf(dim as f64 / (dim - 2) as f64)), 1.0)
            }
            RopeScaling::Dynamic { factor, max_position_embeddings, .. } => {
                let longest = *max_position_embeddings as f64;
                let stretch = factor * seq_len.max(*max_position_embeddings) as f64 / longest - (factor - 1.0);
                (frequencies(dim, theta * stretch.powf(dim as f64 / (dim - 2) as f64)), 1.0)
            }
            RopeScaling::Yarn(yarn) => (yarn.frequencies(dim, theta), yarn.table_scale()),
            RopeScaling::LongRope { short_factor, long_factor, attention_factor, original_max_position_embeddings } => {
                let is_long = seq_len > *original_max_position_embeddings;
                let factors = Tensor::from_slice(if is_long { long_factor } else { short_factor }).to_kind(Kind::Float);
                (frequencies(dim, theta) / factors, *attention_factor)
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
                let plain = frequencies(dim, theta);
                // How often the pre-training context holds the wavelength.
                let turns = &plain * (*original_max_position_embeddings as f64 / std::f64::consts::TAU);
                let kept = ((turns - *low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                let scaled = &plain / *factor;
                (&kept * plain + (1.0 - kept) * scaled, 1.0)
            }
        }
    }
}

impl Yarn {
    /// Returns a ramp from the plain frequencies, of channels that turn more than `beta_fast` times over the original context, to those
    /// divided by `factor`, of channels that turn less than `beta_slow` times.
    fn frequencies(&self, dim: i64, theta: f64) -> Tensor {
        let channel = |turns: f64| {
            let context = self.original_max_position_embeddings as f64;
            dim as f64 * (context / (turns * std::f64::consts::TAU)).ln() / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (channel(self.beta_fast), channel(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min((dim - 1) as f64));
        if low == high {
            high += 0.001;
        }
        let ramp = (Tensor::arange(dim / 2, (Kind::Float, Device::Cpu)) - low) / (high - low);
        let scaled = ramp.clamp(0.0, 1.0);
        let plain = frequencies(dim, theta);
        &plain / self.factor * &scaled + plain * (1.0 - scaled)
    }
}

/// Returns `theta^(-2i/width)`, float32, computed as transformers does.
fn frequencies(width: i64, theta: f64) -> Tensor {
    let exponents = Tensor::arange_start_step(0, width, 2, (Kind::Float, Device::Cpu)) / width as f64;
    Tensor::from(theta as f32).pow(&exponents).reciprocal()
}

#[cfg(test)]
mod tests {
    use tch::{Kind, Tensor};

    use super::{RopeScaling, Yarn};

    /// Frequencies of `ROPE_INIT_FUNCTIONS` of transformers 5.17, heads 24 wide.
    #[test]
    fn every_law_gives_the_frequencies_of_transformers() {
        let yarn = Yarn {
            factor: 4.0,
            original_max_position_embeddings: 32,
            attention_factor: None,
            beta_fast: 32.0,
            beta_slow: 1.0,
            mscale: 0.0,
            mscale_all_dim: 0.0,
            truncate: true,
        };
        let long = Yarn {
            factor: 40.0,
            original_max_position_embeddings: 4096,
            mscale: 1.0,
            mscale_all_dim: 0.707,
            ..yarn.clone()
        };
        let fractional = Yarn {
            factor: 32.0,
            original_max_position_embeddings: 4096,
            attention_factor: Some(1.25),
            beta_fast: 16.0,
            beta_slow: 2.0,
            truncate: false,
            ..yarn.clone()
        };
        let dynamic = RopeScaling::Dynamic { factor: 2.0, max_position_embeddings: 128, alpha: None };
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 64,
        };
        #[rustfmt::skip]
        let cases: [(RopeScaling, f64, i64, f64, [f32; 12]); 7] = [
            (RopeScaling::Linear { factor: 2.5 }, 1e4, 9, 1.0,
                [0.4, 0.18566355, 0.08617738, 0.04, 0.018566353, 0.008617739,
                 0.004, 0.0018566359, 0.00086177373, 0.0004, 0.00018566358, 8.617737e-5]),
            (dynamic.clone(), 1e6, 300, 1.0,
                [1.0, 0.28085288, 0.07887834, 0.022153214, 0.006221793, 0.0017474091,
                 0.0004907648, 0.00013783277, 3.8710707e-5, 1.0872017e-5, 3.0534386e-6, 8.5756653e-7]),
            (dynamic, 1e6, 20, 1.0,
                [1.0, 0.31622776, 0.1, 0.03162278, 0.01, 0.003162278,
                 0.001, 0.00031622784, 0.0001, 3.1622774e-5, 1e-5, 3.162277e-6]),
            (RopeScaling::Yarn(yarn), 1e4, 9, 1.138629436111989,
                [1.0, 0.34811914, 0.107721716, 0.025, 0.011603971, 0.005386087,
                 0.0025, 0.0011603974, 0.0005386086, 0.00025, 0.00011603974, 5.3860855e-5]),
            (RopeScaling::Yarn(long), 1e4, 9, 1.0857263992561355,
                [1.0, 0.4641589, 0.21544345, 0.1, 0.0388733, 0.014542434,
                 0.005125, 0.0016245564, 0.00040395648, 2.5e-5, 1.1603974e-5, 5.3860854e-6]),
            (RopeScaling::Yarn(fractional), 1.5e5, 9, 1.25,
                [1.0, 0.37038982, 0.13718863, 0.050813273, 0.01649284, 0.0028832846,
                 8.0687154e-5, 2.9885709e-5, 1.1069358e-5, 4.0999785e-6, 1.5185908e-6, 5.624703e-7]),
            (llama3, 5e5, 9, 1.0,
                [1.0, 0.27763274, 0.01872319, 0.004700754, 0.001574901, 0.00052764185,
                 0.00017677668, 5.92258e-5, 1.9842508e-5, 6.6478697e-6, 2.2272475e-6, 7.461979e-7]),
        ];
        for (scaling, theta, seq_len, scale, expected) in cases {
            let (found, found_scale) = scaling.frequencies(24, theta, seq_len);
            let error = ((&found - Tensor::from_slice(&expected)) / &found).abs().max().double_value(&[]);
            assert!(error < 2e-6, "{scaling:?}: {error}");
            assert!((found_scale - scale).abs() < 1e-12, "{scaling:?}: {found_scale}");
            assert_eq!(found.kind(), Kind::Float);
        }
    }

    #[test]
    fn the_softmax_scale_grows_with_the_square_of_the_magnitude() {
        let yarn = |mscale_all_dim| {
            RopeScaling::Yarn(Yarn {
                factor: 40.0,
                original_max_position_embeddings: 4096,
                attention_factor: None,
                beta_fast: 32.0,
                beta_slow: 1.0,
                mscale: 1.0,
                mscale_all_dim,
                truncate: true,
            })
        };
        assert!((yarn(1.0).softmax_scale() - 1.368_887_945_411_393_6f64.powi(2)).abs() < 1e-9);
        assert_eq!(yarn(0.0).softmax_scale(), 1.0);
        assert_eq!(RopeScaling::Linear { factor: 40.0 }.softmax_scale(), 1.0);
    }
}
