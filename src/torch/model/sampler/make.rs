//! Latents of a micro-batch's prompts: all samples go their steps together, each at noise levels of its own.

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
    /// Of a sample with a condition the first latent frame is that of the condition (TI2V-5B).
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

    /// The latents `[tokens, width]` of the samples, float32, in their order; `features` are what towers made of their
    /// items, and `noise` what each begins with. `None`: the model makes no latents.
    ///
    /// # Errors
    /// The device failed.
    ///
    /// # Panics
    /// A sample has no target.
    pub fn make(
        &self,
        model: &dyn FoundationModel,
        params: &Rc<ParamStore>,
        batch: &MicroBatch,
        features: &[Vec<Tensor>],
        noise: &[Tensor],
    ) -> Option<Result<Vec<Tensor>, NativeError>> {
        let _no_grad = tch::no_grad_guard();
        let (rows, device) = (&batch.samples, params.flat().device());
        let lens: Vec<i64> = rows.iter().map(num_tokens).collect();
        let mut samplers: Vec<Sampler> =
            lens.iter().map(|tokens| Sampler::new(&self.schedule, *tokens as usize)).collect();
        let parts = |whole: &Tensor| whole.split_with_sizes(&*lens, 0);
        let mut x = Tensor::cat(noise, 0).to_device(device);
        let velocity = |x: &Tensor, times: &[f64], prompt| model.velocity(params, batch, features, x, times, prompt);
        while let Some(times) = samplers.iter().map(Sampler::time).collect::<Option<Vec<f64>>>() {
            let guidance: Vec<_> = times.iter().map(|time| self.guidance.at(*time)).collect();
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
            let step = |(at, (sampler, x)): (usize, (&mut Sampler, Tensor))| {
                let guided = negative.as_ref().filter(|_| guidance[at].reads_negative());
                match guided.map(|negative| guidance[at].combine(&own[at], &negative[at])) {
                    Some(velocity) => sampler.step(&x, &velocity),
                    None => sampler.step(&x, &own[at]),
                }
            };
            x = Tensor::cat(&samplers.iter_mut().zip(parts(&x)).enumerate().map(step).collect::<Vec<_>>(), 0);
        }
        if self.keeps_first_frame {
            keep_first_frames(&x, rows, model, features);
        }
        Some(Ok(parts(&x)))
    }
}

/// Tokens of what is made of a sample.
fn num_tokens(row: &SampleRow) -> i64 {
    row.target.expect("what is to be made has a size").grid.num_patches() as i64
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
        start += grid.num_patches() as i64;
    }
}

#[cfg(test)]
mod tests {
    use loongforge_core::message::{Grid, ItemMeta, SampleId, SampleMeta, Sigma, Target};
    use tch::{Device, Kind};

    use super::*;
    use crate::model::sampler::{Method, Shift};
    use crate::model::{Column, FeatureInput, FoundationTape, NoisePurpose};

    /// The velocity that leads straight to what a prompt says: of prompt 0 the number of the sample, of prompt 1 nothing.
    struct Straight {
        inputs: Vec<FeatureInput>,
        columns: Rc<[Column]>,
    }

    impl FoundationModel for Straight {
        fn record(&self, _: &MicroBatch) -> FoundationTape {
            unreachable!("nothing is trained")
        }

        fn inputs(&self) -> &[FeatureInput] {
            &self.inputs
        }

        fn columns(&self) -> &Rc<[Column]> {
            &self.columns
        }

        fn velocity(
            &self,
            _: &Rc<ParamStore>,
            batch: &MicroBatch,
            _: &[Vec<Tensor>],
            noised: &Tensor,
            sigma: &[f64],
            prompt: usize,
        ) -> Option<Result<Tensor, NativeError>> {
            let mut start = 0;
            let of_row = |(row, sigma): (&SampleRow, &f64)| {
                let x = noised.narrow(0, start, num_tokens(row));
                start += num_tokens(row);
                let data = if prompt == 0 { row.id.0 as f64 } else { 0.0 };
                (x - data) / *sigma
            };
            Some(Ok(Tensor::cat(&batch.samples.iter().zip(sigma).map(of_row).collect::<Vec<_>>(), 0)))
        }
    }

    fn row(id: u64, t: u32, given: u32) -> SampleRow {
        let target = Some(Target { grid: Grid { t, h: 1, w: 2 }, sigma: Sigma::default() });
        let item = ItemMeta { tower: Tower::Vae, grid: Grid { t: 1, h: 1, w: given }, num_features: given };
        let items = if given > 0 { vec![item] } else { Vec::new() };
        let meta = SampleMeta { target, items, ..SampleMeta::of_tokens(SampleId(id), 2 * t, 1) };
        SampleRow::new(&meta, true, NoisePurpose::Evaluation(0))
    }

    #[test]
    fn every_sample_goes_its_own_way_to_what_it_is_told() {
        let input = FeatureInput { tower: Tower::Vae, num_tensors: 1, width: 3, placeholders: Vec::new() };
        let model = Straight { inputs: vec![input], columns: Rc::new([]) };
        let params = Rc::new(ParamStore::new(Vec::new(), Kind::Float, Device::Cpu));
        let rows = vec![row(5, 1, 0), row(7, 3, 2)];
        let batch = MicroBatch { samples: rows.clone().into(), ..MicroBatch::filler(&model.columns, Device::Cpu) };
        let given = Tensor::full([2, 3], 40.0, (Kind::Float, Device::Cpu));
        let settings = |method, scale: f64, keeps_first_frame| MakeSettings {
            schedule: Schedule { method, num_steps: 8, shift: Shift::BySize([(2.0, 0.0), (6.0, 1.0)]), terminal: None },
            guidance: GuidanceScales { scales: vec![scale], boundary: 0.0, keeps_length: false },
            seed: 3,
            keeps_first_frame,
        };
        for (method, scale, keeps) in
            [(Method::Euler, 1.0, false), (Method::Euler, 2.0, true), (Method::UniPc, 1.0, true)]
        {
            let settings = settings(method, scale, keeps);
            let noise: Vec<Tensor> = rows.iter().map(|row| settings.noise(row, 3)).collect();
            let features = [vec![given.shallow_clone()]];
            let made = settings.make(&model, &params, &batch, &features, &noise).unwrap().unwrap();
            assert_eq!(made.iter().map(Tensor::size).collect::<Vec<_>>(), [[2, 3], [6, 3]]);
            for (row, made) in rows.iter().zip(&made) {
                // Away from nothing: as far again, in the last step alone, which ends at the data of the combined velocity.
                let want = scale * row.id.0 as f64;
                let from = if keeps && row.id.0 == 7 { 2 } else { 0 };
                let off = (made.narrow(0, from, made.size()[0] - from) - want).abs().max().double_value(&[]);
                assert!(off < 1e-2, "{method:?}, guidance {scale}: sample {} is off by {off}", row.id);
                assert!(from == 0 || made.narrow(0, 0, 2).equal(&given), "the given frame stays");
            }
        }
        let noise = |id| settings(Method::Euler, 1.0, false).noise(&row(id, 3, 0), 3);
        assert!(noise(5).equal(&noise(5)) && !noise(5).equal(&noise(7)));
    }
}
