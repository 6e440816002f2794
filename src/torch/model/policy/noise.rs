//! The noise and times that are drawn for the samples of a micro-batch, and the shares of their draws in the loss.
//!
//! Shapes: N samples, K draws of each, H actions of a sample of A numbers each.

use loongforge_core::message::SampleId;
use loongforge_core::schedule::TimeSampler;
use tch::{Device, Tensor};

use super::config::PolicyOptions;
use crate::device::upload;
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::objective::{Draw, NoisePurpose};

/// Noise and time of all draws: samples in their order, and the draws of each side by side.
pub struct Noise {
    /// `[N·K·H, A]`, float32.
    pub noise: Tensor,
    /// `[N·K]`, float32.
    pub times: Tensor,
    /// Actions that each draw is given, `[N·K]`; empty where none is given any.
    pub delays: Vec<u32>,
}

/// The number of the random stream of delays, which differs from those of noise and times.
const DELAY: u32 = 0;

impl Noise {
    /// Draws for these samples; `shape` is that of a sample's actions, `[H, A]`.
    pub fn draw(
        rows: &[SampleRow],
        seed: u64,
        shape: [i64; 2],
        sampler: &TimeSampler,
        options: PolicyOptions,
    ) -> Noise {
        let draws = || {
            rows.iter().flat_map(|row| {
                let draw = |number| Draw { seed, sample: row.id, purpose: row.purpose, number };
                (0..options.noise_draws).map(draw)
            })
        };
        let noise: Vec<Tensor> = draws().map(|draw| draw.noise(&shape)).collect();
        let times: Vec<f32> = draws().map(|draw| draw.time(sampler) as f32).collect();
        // Held-out samples are given nothing, so that their losses mean the same for all policies.
        let delay = |draw: Draw| match draw.purpose {
            NoisePurpose::Training => (draw.chance(DELAY) * f64::from(options.max_delay + 1)) as u32,
            NoisePurpose::Evaluation(_) => 0,
        };
        let delays = if options.max_delay == 0 { Vec::new() } else { draws().map(delay).collect() };
        Noise { noise: Tensor::cat(&noise, 0), times: Tensor::from_slice(&times), delays }
    }
}

/// Returns the weight of each draw in the loss, `[N, K, 1, 1]`, float32, on `device`: an even share of its sample, times `at` of its
/// time; 0 for a sample that does not count. `times` are those of all draws.
pub fn shares(rows: &[SampleRow], times: &[f32], at: impl Fn(f64) -> f64, device: Device) -> Tensor {
    let num_draws = times.len() / rows.len();
    let of_draw = |(number, time): (usize, &f32)| {
        let counts = rows[number / num_draws].num_targets > 0;
        if counts { (at(f64::from(*time)) / num_draws as f64) as f32 } else { 0.0 }
    };
    let shares: Vec<f32> = times.iter().enumerate().map(of_draw).collect();
    upload(&Tensor::from_slice(&shares), device).view([rows.len() as i64, num_draws as i64, 1, 1])
}

/// Returns the values of `[N·K]` times.
pub fn times_of(times: &Tensor) -> Vec<f32> {
    Vec::try_from(times.to_device(Device::Cpu)).expect("a row of times")
}

/// Returns the samples of a batch. A batch without any, with which a rank takes part in the batch of another rank, has one that counts
/// for nothing.
pub fn samples_of(batch: &MicroBatch) -> Vec<SampleRow> {
    if batch.samples.is_empty() { vec![filler()] } else { batch.samples.to_vec() }
}

/// Returns a sample that counts for nothing.
fn filler() -> SampleRow {
    SampleRow {
        id: SampleId(0),
        num_tokens: 1,
        num_targets: 0,
        target: None,
        items: Vec::new(),
        purpose: NoisePurpose::Training,
    }
}
