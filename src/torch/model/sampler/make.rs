//! Latents of a micro-batch's prompts: all samples go their steps together, each at noise levels of its own.

use std::ops::Range;
use std::rc::Rc;

use loongforge_core::message::Tower;
use tch::Tensor;

use super::guidance::GuidanceScales;
use super::{Sampler, Schedule};
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::foundation::FoundationModel;
use crate::model::objective;
use crate::native::NativeError;
use crate::params::ParamStore;

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
    /// Numbers of a token of the latents that a model makes; `None`: it makes none.
    pub fn width(&self, model: &dyn FoundationModel) -> Option<i64> {
        model.inputs().iter().find(|input| input.tower == Tower::Vae).map(|input| input.width)
    }

    /// The noise of a sample of a micro-batch, `[tokens, width]`, float32, on the CPU.
    pub fn noise(&self, row: &SampleRow, width: i64) -> Tensor {
        objective::noise(self.seed, row.id, row.purpose, &[num_tokens(row), width])
    }

    /// The samples of a micro-batch before their first step, from `noise`, one a sample. Noise is `[tokens, width]`.
    ///
    /// # Panics
    /// A sample has no target.
    pub fn begin(&self, rows: &[SampleRow], noise: Vec<Tensor>) -> Vec<Underway> {
        let begin = |(row, x): (&SampleRow, Tensor)| Underway { x, sampler: self.sampler(row) };
        rows.iter().zip(noise).map(begin).collect()
    }

    /// Takes all steps of the samples that the model is told noise levels within `levels` of; `features` are what towers made of
    /// their items. `None`: the model makes no latents. Features are `[N, D]`.
    ///
    /// # Errors
    /// The device failed.
    pub fn advance(
        &self,
        samples: &mut [Underway],
        levels: &Range<f64>,
        (model, params): (&dyn FoundationModel, &Rc<ParamStore>),
        batch: &MicroBatch,
        features: &[Vec<Tensor>],
    ) -> Option<Result<(), NativeError>> {
        let _no_grad = tch::no_grad_guard();
        let device = params.flat().device();
        let lens: Vec<i64> = batch.samples.iter().map(num_tokens).collect();
        let parts = |whole: &Tensor| whole.split_with_sizes(&*lens, 0);
        let velocity = |x: &Tensor, times: &[f64], prompt| model.velocity(params, batch, features, x, times, prompt);
        for sample in samples.iter_mut() {
            sample.x = sample.x.to_device(device);
        }
        loop {
            let due: Vec<Option<f64>> =
                samples.iter().map(|sample| sample.sampler.time().filter(|time| levels.contains(time))).collect();
            if due.iter().all(Option::is_none) {
                return Some(Ok(()));
            }
            // One that rests is told a level, and its velocity is not used.
            let times: Vec<f64> = due.iter().map(|time| time.unwrap_or(1.0)).collect();
            let guidance: Vec<_> = times.iter().map(|time| self.guidance.at(*time)).collect();
            let x = Tensor::cat(&samples.iter().map(|sample| &sample.x).collect::<Vec<_>>(), 0);
            let own = match velocity(&x, &times, 0)? {
                Ok(own) => parts(&own),
                Err(error) => return Some(Err(error)),
            };
            let negative = match guidance.iter().any(|guidance| guidance.reads_negative()) {
                true => match velocity(&x, &times, 1)? {
                    Ok(negative) => Some(parts(&negative)),
                    Err(error) => return Some(Err(error)),
                },
                false => None,
            };
            for (at, Underway { x, sampler }) in samples.iter_mut().enumerate().filter(|(at, _)| due[*at].is_some()) {
                let guided = negative.as_ref().filter(|_| guidance[at].reads_negative());
                *x = match guided.map(|negative| guidance[at].combine(&own[at], &negative[at])) {
                    Some(velocity) => sampler.step(x, &velocity),
                    None => sampler.step(x, &own[at]),
                };
            }
        }
    }

    /// The latents `[tokens, width]` of samples whose last step is done, float32, in their order.
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

    /// Returns what [`Underway::tensors`] are of. Tensors have the shapes that they had.
    ///
    /// # Errors
    /// One is missing: they are of another sampler.
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
    /// All that the next steps depend on, with names. The sample is `[tokens, width]`, and so is what its sampler keeps of it.
    pub fn tensors(&self) -> Vec<(String, Tensor)> {
        let own = [("x", self.x.shallow_clone())].into_iter().chain(self.sampler.state());
        own.map(|(name, tensor)| (name.to_owned(), tensor)).collect()
    }
}

/// Tokens of what is made of a sample.
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
