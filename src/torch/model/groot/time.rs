//! Sinusoids of times, which are whole numbers.
//!
//! Shapes: S times.

use tch::{Device, Kind, Tensor};

use crate::device::upload;

/// The logarithm of the longest period, in float32 as the reference has it.
const LOG: f64 = (9.210_340_5_f32) as f64;

/// Returns cosines, then sines `[S, channels]`, float32: frequencies from 1 down to 1 / 10 000 (`Timesteps` of diffusers with
/// `downscale_freq_shift` 1).
pub(super) fn cosines_first(times: &[i64], channels: i64, device: Device) -> Tensor {
    let half = channels / 2;
    let exponents = Tensor::arange(half, (Kind::Float, Device::Cpu)) * -(10_000f64.ln()) / (half - 1) as f64;
    let angles = angles(times, &exponents);
    upload(&Tensor::cat(&[angles.cos(), angles.sin()], 1), device)
}

/// Returns sines, then cosines `[S, channels]`, float32: frequencies from 1 down to nearly 1 / 10 000 (`SinusoidalPositionalEncoding` of
/// the reference).
pub(super) fn sines_first(times: &[i64], channels: i64, device: Device) -> Tensor {
    let half = channels / 2;
    let exponents = Tensor::arange(half, (Kind::Float, Device::Cpu)) * -((LOG / half as f64) as f32 as f64);
    let angles = angles(times, &exponents);
    upload(&Tensor::cat(&[angles.sin(), angles.cos()], 1), device)
}

fn angles(times: &[i64], exponents: &Tensor) -> Tensor {
    Tensor::from_slice(times).to_kind(Kind::Float).unsqueeze(1) * exponents.exp().unsqueeze(0)
}

#[cfg(test)]
mod tests {
    use tch::{Device, Tensor};

    use super::{cosines_first, sines_first};

    #[test]
    fn the_two_orders_and_their_frequencies() {
        let close = |found: Tensor, expected: &[f32]| {
            found.allclose(&Tensor::from_slice(expected).view([2, 4]), 1e-6, 1e-7, false)
        };
        let [a, b] = [2f32, 2e-4].map(|angle| [angle.sin(), angle.cos()]);
        assert!(close(cosines_first(&[2, 0], 4, Device::Cpu), &[a[1], b[1], a[0], b[0], 1.0, 1.0, 0.0, 0.0]));
        let b = [0.02f32.sin(), 0.02f32.cos()];
        assert!(close(sines_first(&[2, 0], 4, Device::Cpu), &[a[0], b[0], a[1], b[1], 0.0, 0.0, 1.0, 1.0]));
    }
}
