//! Samplers of diffusion models: from noise to a latent by steps along the velocity that the model predicts, with the
//! numbers of diffusers' `FlowMatchEulerDiscreteScheduler` and `UniPCMultistepScheduler` (flow prediction, order 2, bh2).
//!
//! Pure mathematics over tensors: each sample has a [`Sampler`] of its own, since its noise levels may depend on its size.
//! The owner of the model asks for [`Sampler::time`], predicts, and takes a [`Sampler::step`] until there is none.

mod guidance;
mod make;
mod schedule;
#[cfg(test)]
mod tests;
mod unipc;
mod whole;

use tch::{Kind, Tensor};

pub use guidance::{Guidance, GuidanceScales};
pub use make::{MakeSettings, Underway};
pub use schedule::{Levels, Schedule, ScheduleError, Shift};
use unipc::UniPc;
pub use whole::velocity;

/// Says how a step goes on from the predicted velocity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Along the velocity.
    Euler,
    /// Predictor and corrector of second order (Zhao et al. 2023).
    UniPc,
}

/// One sample on its way from noise to data.
pub struct Sampler {
    levels: Levels,
    /// Steps that were taken.
    done: usize,
    /// The multistep state; `None` of Euler.
    unipc: Option<UniPc>,
}

impl Sampler {
    /// Makes the sampler of a sample in `schedule.num_steps` steps; `num_tokens` of the picture count where the shift depends on it.
    pub fn new(schedule: &Schedule, num_tokens: usize) -> Self {
        let unipc = (schedule.method == Method::UniPc).then(UniPc::default);
        Self { levels: schedule.levels(num_tokens), done: 0, unipc }
    }

    /// Returns the noise levels of all steps.
    pub fn levels(&self) -> &Levels {
        &self.levels
    }

    /// Returns the noise level that the model is told at the next step, in (0, 1]; `None`: the sample is done.
    pub fn time(&self) -> Option<f64> {
        self.levels.times.get(self.done).copied()
    }

    /// Returns the tensors that the next steps depend on beside the sample, with names.
    fn state(&self) -> Vec<(&'static str, Tensor)> {
        let done = Tensor::from(self.done as i64);
        let former = self.unipc.as_ref().map_or(Vec::new(), UniPc::state);
        [("done", done)].into_iter().chain(former).collect()
    }

    /// Undoes [`Sampler::state`] on a new sampler of the same kind.
    ///
    /// # Errors
    /// A tensor is missing, whose name is the error.
    fn restore(&mut self, tensor: &dyn Fn(&'static str) -> Option<Tensor>) -> Result<(), &'static str> {
        self.done = tensor("done").ok_or("done")?.int64_value(&[]) as usize;
        if let Some(unipc) = self.unipc.as_mut().filter(|_| self.done > 0) {
            unipc.restore(tensor)?;
        }
        Ok(())
    }

    /// Returns the next state of the sample `x` `[tokens, width]`, float32, from the `velocity` `[tokens, width]` that was predicted
    /// there; both inputs are converted to float32.
    ///
    /// # Panics
    /// The sample is done.
    pub fn step(&mut self, x: &Tensor, velocity: &Tensor) -> Tensor {
        let (x, velocity) = (x.to_kind(Kind::Float), velocity.to_kind(Kind::Float));
        let [sigma, next] = [self.levels.sigmas[self.done], self.levels.sigmas[self.done + 1]];
        self.done += 1;
        match &mut self.unipc {
            None => x + velocity * f64::from(next - sigma),
            Some(unipc) => unipc.step(&x, &velocity, [f64::from(sigma), f64::from(next)]),
        }
    }
}
