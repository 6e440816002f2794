//! The embedding of noise levels: sines and cosines through two linear maps, in float32 whatever kind the model has.
//!
//! Shapes: R noise levels, D width.

use tch::{Device, Kind, Tensor};

use super::maps::outer_map;
use crate::device::upload;
use crate::nn::Linear;
use crate::params::{ParamSpec, Scope};

/// The two maps.
pub(in crate::model) struct TimeEmbedder {
    linear_1: Linear,
    linear_2: Linear,
}

impl TimeEmbedder {
    /// Declares the two maps of `num_channels` sines and cosines to `width`, by Diffusers' names below `name`.
    pub fn specs(prefix: &str, name: &str, num_channels: i64, width: i64) -> Vec<ParamSpec> {
        Self::specs_of(prefix, &Self::names(name), num_channels, width)
    }

    /// Takes the maps that [`TimeEmbedder::specs`] declares.
    pub fn new(scope: &Scope<'_>, name: &str) -> TimeEmbedder {
        Self::of(scope, &Self::names(name))
    }

    /// Works like [`TimeEmbedder::specs`] for maps of these names.
    pub fn specs_of(prefix: &str, [first, second]: &[String; 2], num_channels: i64, width: i64) -> Vec<ParamSpec> {
        let first = outer_map(prefix, first, num_channels, width);
        first.into_iter().chain(outer_map(prefix, second, width, width)).collect()
    }

    /// Works like [`TimeEmbedder::new`] for maps of these names.
    pub fn of(scope: &Scope<'_>, names: &[String; 2]) -> TimeEmbedder {
        let [linear_1, linear_2] = names.each_ref().map(|name| Linear::new(scope, name));
        TimeEmbedder { linear_1, linear_2 }
    }

    /// Returns the maps of the embedder that Diffusers calls `name`.
    fn names(name: &str) -> [String; 2] {
        [1, 2].map(|number| format!("{name}.linear_{number}"))
    }

    /// Maps `[R, channels]` of [`sinusoids`] to `[R, D]`, float32.
    pub fn forward(&self, waves: &Tensor) -> Tensor {
        self.linear_2.forward_wide(&self.linear_1.forward_wide(waves).silu())
    }
}

/// Returns cosines and then sines of `scale · t` at frequencies from 1 down to 1 / 10 000: `[R, num_channels]`, float32. Products are
/// rounded as in diffusers' `get_timestep_embedding`.
pub(super) fn sinusoids(times: &[f64], scale: f64, num_channels: i64, device: Device) -> Tensor {
    let half = num_channels / 2;
    let exponents = Tensor::arange(half, (Kind::Float, Device::Cpu)) * -(10_000f64.ln()) / half as f64;
    let times: Vec<f32> = times.iter().map(|time| *time as f32).collect();
    let angles = Tensor::from_slice(&times).unsqueeze(1) * exponents.exp().unsqueeze(0) * scale;
    upload(&Tensor::cat(&[angles.cos(), angles.sin()], 1), device)
}

/// Works like [`sinusoids`] with products, sines and cosines in float64, as Wan's own source has them: `[R, num_channels]`, float32.
pub(in crate::model) fn exact_sinusoids(times: &[f64], num_channels: i64, device: Device) -> Tensor {
    let half = num_channels / 2;
    let exponents = Tensor::arange(half, (Kind::Double, Device::Cpu)) * (-(10_000f64.ln()) / half as f64);
    let angles = Tensor::from_slice(times).unsqueeze(1) * exponents.exp().unsqueeze(0);
    upload(&Tensor::cat(&[angles.cos(), angles.sin()], 1).to_kind(Kind::Float), device)
}

#[cfg(test)]
mod tests {
    use tch::{Device, Tensor};

    use super::{exact_sinusoids, sinusoids};

    #[test]
    fn cosines_come_first() {
        let found = sinusoids(&[2.0, 0.0], 0.5, 4, Device::Cpu);
        let expected = [1f32.cos(), 0.01f32.cos(), 1f32.sin(), 0.01f32.sin(), 1.0, 1.0, 0.0, 0.0];
        assert!(found.allclose(&Tensor::from_slice(&expected).view([2, 4]), 1e-6, 1e-7, false));
        assert!(exact_sinusoids(&[1.0, 0.0], 4, Device::Cpu).allclose(&found, 1e-6, 1e-7, false));
    }
}
