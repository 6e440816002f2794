//! Flow matching (Lipman et al. 2023; rectified flow, Liu et al. 2023): a model learns the velocity of a straight line from
//! data to noise. At time t a sample x with noise n lies at `(1 − t)·x + t·n`, and its velocity is `n − x`. Models with the
//! other direction, as GR00T has it, are translated where their config is read.
//!
//! Noise and time belong to the run's seed, the sample and what they are for: no layout, batch or resumed step moves a bit.
//!
//! Shapes: T rows of all samples of a micro-batch, end to end, D numbers of a row, L rows of one sample.

mod loss;
#[cfg(test)]
mod tests;
mod time;

use loongforge_core::message::SampleId;
use loongforge_core::rng::Counter;
use tch::{Kind, Tensor};

use crate::tape::{Slot, Tape};
pub use loongforge_core::schedule::TimeSampler;
pub use loss::{FlowSettings, LossKind};
pub use time::TimeWeight;

/// The objective: which times are drawn, what the model predicts, and how much a time counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    pub time: TimeSampler,
    pub target: FlowTarget,
    pub weight: TimeWeight,
}

/// Says what a model predicts of a noised sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowTarget {
    /// `n − x`.
    Velocity,
    /// x itself (X-VLA).
    Sample,
}

/// Says what noise is for: each purpose has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoisePurpose {
    Training,
    /// Draw number so many of a sample that is held out, each at a time of its own.
    Evaluation(u32),
}

/// The noise of one sample and its time.
pub struct Drawn {
    /// `[L, D]`, float32, on the CPU.
    pub noise: Tensor,
    pub time: f64,
}

/// The samples of a micro-batch, noised.
pub struct FlowBatch {
    /// The model's input `[T, D]`.
    pub noised: Tensor,
    /// The time of each row `[T]`, float32.
    pub time: Tensor,
    /// The model's target, `[T, D]`, float32.
    pub target: Tensor,
    /// The weight of each element of a row in the loss, `[T, 1]`, float32: a sample's weight over its number of elements.
    pub weight: Tensor,
}

impl Flow {
    /// The noise `shape` of a sample, and its time. The sample's position counts over all epochs, so that every visit has
    /// its own.
    pub fn draw(&self, seed: u64, sample: SampleId, purpose: NoisePurpose, shape: &[i64]) -> Drawn {
        Drawn {
            noise: Flow::noise(seed, sample, purpose, shape),
            time: self.time.at(stream(seed, sample, purpose, 1).unit(0)),
        }
    }

    /// The noise `shape` of a sample alone, float32, on the CPU.
    pub fn noise(seed: u64, sample: SampleId, purpose: NoisePurpose, shape: &[i64]) -> Tensor {
        let noise = stream(seed, sample, purpose, 0);
        let values: Vec<f32> = (0..shape.iter().product::<i64>() as u64).map(|at| noise.normal(at) as f32).collect();
        Tensor::from_slice(&values).view(shape)
    }

    /// The samples `[L, D]` of a micro-batch with what was drawn for each, on the samples' device. Panics of other shapes,
    /// and where there is no sample.
    pub fn batch(&self, samples: &[Tensor], drawn: &[Drawn]) -> FlowBatch {
        let (mut noised, mut target, mut time, mut weight) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (x, drawn) in samples.iter().zip(drawn) {
            let (x, kind) = (x.to_kind(Kind::Float), x.kind());
            let noise = drawn.noise.to_device(x.device());
            assert_eq!(x.size(), noise.size(), "noise for the sample");
            noised.push((&x * (1.0 - drawn.time) + &noise * drawn.time).to_kind(kind));
            let full = |value: f64| Tensor::full([x.size()[0]], value, (Kind::Float, x.device()));
            time.push(full(drawn.time));
            weight.push(full(self.weight.at(drawn.time) / x.numel() as f64));
            target.push(match self.target {
                FlowTarget::Velocity => noise - x,
                FlowTarget::Sample => x,
            });
        }
        let [noised, time, target, weight] = [noised, time, target, weight].map(|parts| Tensor::cat(&parts, 0));
        FlowBatch { noised, time, target, weight: weight.unsqueeze(1) }
    }

    /// The sum over samples of the weighted mean square error of `predicted` `[T, D]`, times `scale`: a float64 scalar.
    pub fn record(&self, tape: &mut Tape, name: &str, predicted: Slot, batch: &FlowBatch, scale: f64) -> Slot {
        let (target, weight) = (Some(batch.target.shallow_clone()), batch.weight.shallow_clone());
        let loss = loss::WeightedError { kind: LossKind::Mse, target, weight, scale };
        tape.custom(name, &[], &[predicted], 1, Box::new(loss))[0]
    }

    /// The velocity at `noised` that a prediction means.
    pub fn velocity(&self, predicted: &Tensor, noised: &Tensor, time: f64) -> Tensor {
        match self.target {
            FlowTarget::Velocity => predicted.shallow_clone(),
            FlowTarget::Sample => (noised - predicted) / time,
        }
    }

    /// Goes from noise to data in `num_steps` steps of Euler's, at even times; `predict` is the model, of what is noised and
    /// its time.
    pub fn integrate(&self, noise: &Tensor, num_steps: usize, predict: impl Fn(&Tensor, f64) -> Tensor) -> Tensor {
        let step = 1.0 / num_steps as f64;
        (0..num_steps).fold(noise.shallow_clone(), |x, at| {
            let time = 1.0 - at as f64 * step;
            let velocity = self.velocity(&predict(&x, time), &x, time);
            x - velocity * step
        })
    }
}

/// The numbers that a sample has for one of its draws.
fn stream(seed: u64, sample: SampleId, purpose: NoisePurpose, of: u64) -> Counter {
    let purpose = match purpose {
        NoisePurpose::Training => 0,
        NoisePurpose::Evaluation(draw) => 1 + u64::from(draw),
    };
    Counter::new(&[seed, sample.0, purpose, of])
}
