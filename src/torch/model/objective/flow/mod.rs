//! Flow matching (Lipman et al. 2023; rectified flow, Liu et al. 2023): a model learns the velocity of a straight line from
//! data to noise. At time t a sample x with noise n lies at `(1 − t)·x + t·n`, and its velocity is `n − x`. Models with the
//! other direction, as GR00T has it, are translated where their config is read. The scheduler plans the times.
//!
//! Noise belongs to the run's seed, the sample and what it is for: no layout, batch or resumed step moves a bit.

mod draw;
mod loss;
#[cfg(test)]
mod tests;
mod time;

use loongforge_core::message::SampleId;
use tch::Tensor;

pub use draw::Draw;
pub use loss::{FlowSettings, LossKind};
pub use time::TimeWeight;

/// Says what noise is for: each purpose has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoisePurpose {
    Training,
    /// Draw number so many of a sample that is held out, each at a time of its own.
    Evaluation(u32),
}

/// Returns the noise of a sample, of the given `shape`, float32, on the CPU. The sample's position counts over all epochs, so that every
/// visit has its own.
pub fn noise(seed: u64, sample: SampleId, purpose: NoisePurpose, shape: &[i64]) -> Tensor {
    Draw { seed, sample, purpose, number: 0 }.noise(shape)
}
