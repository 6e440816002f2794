//! Latents of a micro-batch's prompts: all samples go their steps together, each at noise levels of its own.

use std::ops::Range;

use loongforge_core::message::Tower;
use tch::{Device, Tensor};

use super::guidance::GuidanceScales;
use super::{Sampler, Schedule, Shift};
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::foundation::{FoundationModel, Noised};
use crate::model::objective;

/// Says how samples are made of prompts.
#[derive(Clone, Debug, PartialEq)]
pub struct MakeSettings {
    pub schedule: Schedule,
    pub guidance: GuidanceScales,
    /// Seed of the noise.
    pub seed: u64,
    /// The first latent frame of a sample with a condition is that of the condition (TI2V-5B).
    pub keeps_first_frame: bool,
}

impl MakeSettings {
    /// Returns the number of values of a token of the latents that a model makes; `None`: it makes none.
    pub fn width(&self, model: &dyn FoundationModel) -> Option<i64> {
        model.inputs().iter().find(|input| input.tower == Tower::Vae).map(|input| input.width)
    }

    /// Returns the noise of a sample of a micro-batch, `[tokens, width]`, float32, on the CPU.
    pub fn noise(&self, row: &SampleRow, width: i64) -> Tensor {
        objective::noise(self.seed, row.id, row.purpose, &[num_tokens(row), width])
    }

    /// Returns the samples of a micro-batch before their first step, from `noise`, one a sample. Noise is `[tokens, width]`.
    ///
    /// # Panics
    /// A sample has no target.
    pub fn begin(&self, rows: &[SampleRow], noise: Vec<Tensor>) -> Vec<Underway> {
        let begin = |(row, x): (&SampleRow, Tensor)| Underway { x, sampler: self.sampler(row) };
        rows.iter().zip(noise).map(begin).collect()
    }

    /// Takes all steps of the samples that the model is told noise levels within `levels` of, on `device`. `velocity` says what
    /// the model predicts, `[T, P]`.
    ///
    /// # Errors
    /// Fails as `velocity` does.
    pub fn advance<E>(
        &self,
        samples: &mut [Underway],
        levels: &Range<f64>,
        device: Device,
        mut velocity: impl FnMut(&Noised) -> Result<Tensor, E>,
    ) -> Result<(), E> {
        let _no_grad = tch::no_grad_guard();
        for sample in samples.iter_mut() {
            sample.x = sample.x.to_device(device);
        }
        let lens: Vec<i64> = samples.iter().map(|sample| sample.x.size()[0]).collect();
        loop {
            let due: Vec<Option<f64>> =
                samples.iter().map(|sample| sample.sampler.time().filter(|time| levels.contains(time))).collect();
            if due.iter().all(Option::is_none) {
                return Ok(());
            }
            // One that rests is told a level, and its velocity is not used.
            let sigma: Vec<f64> = due.iter().map(|time| time.unwrap_or(1.0)).collect();
            let guidance: Vec<_> = sigma.iter().map(|time| self.guidance.at(*time)).collect();
            let latents = Tensor::cat(&samples.iter().map(|sample| &sample.x).collect::<Vec<_>>(), 0);
            let mut at = Noised { latents, sigma, prompt: 0 };
            let own = velocity(&at)?.split_with_sizes(&*lens, 0);
            at.prompt = 1;
            let is_guided =
                (due.iter().zip(&guidance)).any(|(due, guidance)| due.is_some() && guidance.reads_negative());
            let negative = is_guided.then(|| velocity(&at)).transpose()?.map(|all| all.split_with_sizes(&*lens, 0));
            for (at, Underway { x, sampler }) in samples.iter_mut().enumerate().filter(|(at, _)| due[*at].is_some()) {
                let guided = negative.as_ref().filter(|_| guidance[at].reads_negative());
                *x = match guided.map(|negative| guidance[at].combine(&own[at], &negative[at])) {
                    Some(velocity) => sampler.step(x, &velocity),
                    None => sampler.step(x, &own[at]),
                };
            }
        }
    }

    /// Returns how many forwards the steps of a sample within `levels` take at most, whatever its size.
    pub fn max_forwards(&self, levels: &Range<f64>) -> usize {
        let forwards = |time: f64| if self.guidance.at(time).reads_negative() { 2 } else { 1 };
        match self.schedule.shift {
            // The levels of all sizes are the same.
            Shift::Constant(_) => {
                let times = self.schedule.levels(0).times;
                times.into_iter().filter(|time| levels.contains(time)).map(forwards).sum()
            }
            Shift::BySize(_) => {
                let is_guided = self.guidance.scales.iter().any(|scale| *scale != 1.0);
                self.schedule.num_steps.max(1) * if is_guided { 2 } else { 1 }
            }
        }
    }

    /// Returns the latents `[tokens, width]` of samples whose last step is done, float32, in their order.
    pub fn finish(
        &self,
        samples: Vec<Underway>,
        model: &dyn FoundationModel,
        batch: &MicroBatch,
        features: &[Vec<Tensor>],
    ) -> Vec<Tensor> {
        let _no_grad = tch::no_grad_guard();
        let lens: Vec<i64> = batch.samples.iter().map(num_tokens).collect();
        let x = Tensor::cat(&samples.into_iter().map(|sample| sample.x).collect::<Vec<_>>(), 0);
        if self.keeps_first_frame {
            keep_first_frames(&x, &batch.samples, model, features);
        }
        x.split_with_sizes(&*lens, 0)
    }

    fn sampler(&self, row: &SampleRow) -> Sampler {
        Sampler::new(&self.schedule, num_tokens(row) as usize)
    }

    /// Restores a sample from the tensors that [`Underway::tensors`] gave: `x` `[tokens, width]`, float32, and those of the sampler, in
    /// the shapes and types that they had.
    ///
    /// # Errors
    /// A tensor is missing, whose name is the error: the tensors are of another sampler.
    pub fn resume(
        &self,
        row: &SampleRow,
        tensor: &dyn Fn(&'static str) -> Option<Tensor>,
    ) -> Result<Underway, &'static str> {
        let mut sampler = self.sampler(row);
        sampler.restore(tensor)?;
        Ok(Underway { x: tensor("x").ok_or("x")?, sampler })
    }
}

/// One sample between two steps: `x` `[tokens, width]` is float32.
pub struct Underway {
    x: Tensor,
    sampler: Sampler,
}

impl Underway {
    /// Returns the tensors that the next steps depend on, with names. The sample is `[tokens, width]`, and so is what its sampler keeps
    /// of it.
    pub fn tensors(&self) -> Vec<(String, Tensor)> {
        let own = [("x", self.x.shallow_clone())].into_iter().chain(self.sampler.state());
        own.map(|(name, tensor)| (name.to_owned(), tensor)).collect()
    }
}

/// Returns the number of tokens of what is made of a sample.
fn num_tokens(row: &SampleRow) -> i64 {
    row.target.expect("what is to be made has a size").grid.num_cells() as i64
}

/// Puts the first latent frame of each sample's condition in its place.
fn keep_first_frames(x: &Tensor, rows: &[SampleRow], model: &dyn FoundationModel, features: &[Vec<Tensor>]) {
    let input = model.inputs().iter().position(|input| input.tower == Tower::Vae);
    let Some(given) = input.and_then(|input| features.get(input)?.first()) else { return };
    let (mut start, mut first) = (0, 0);
    for row in rows {
        let grid = row.target.expect("what is to be made has a size").grid;
        let frame = i64::from(grid.h) * i64::from(grid.w);
        let conditions = || row.items.iter().filter(|item| item.tower == Tower::Vae);
        if conditions().next().is_some() {
            x.narrow(0, start, frame).copy_(&given.narrow(0, first, frame));
        }
        first += conditions().map(|item| i64::from(item.num_features)).sum::<i64>();
        start += grid.num_cells() as i64;
    }
}

#[cfg(test)]
#[path = "make_tests.rs"]
mod tests;
