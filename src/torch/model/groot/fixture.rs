//! Fixtures of GR00T, which `tests/oracle/make_groot.py` (N1.7) and `make_groot_n1_6.py` write: their samples here and in the references.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use loongforge_core::data::IGNORE_INDEX;
use loongforge_core::message::Grid;
use serde::Deserialize;
use tch::{Kind, Tensor};

use super::config::GrootConfig;
use super::flowing::Noise;
use crate::model::batch::MicroBatch;
use crate::model::columns::Columns;
use crate::model::encoder::EncoderFamily;
use crate::model::family::groot::published;
use crate::model::fixture::{
    self, Comparisons, FixtureError, FixtureFolder, Found, Parts, ReferenceFixture, draws_of, rows_of,
};
use crate::model::foundation::{FoundationFamily, FoundationTape};
use crate::model::keys::Keys;
use crate::model::policy::{Denoising, Observed, PolicyFamily, PolicyModel, PolicyOptions, RobotPolicy};
use crate::params::ParamStore;
use crate::tape::Policy;

/// The tolerance of losses and actions, as a share of the largest value of a tensor.
const TOLERANCE: f64 = 5e-6;
/// The tolerance of gradients, which are sums over all rows in another order. The reference's own are off by up to 4e-5 in float32.
const OF_GRADIENTS: f64 = 5e-5;

/// A policy and its samples.
pub(in crate::model) struct Fixture {
    pub config: GrootConfig,
    pub params: Rc<ParamStore>,
    pub(super) inputs: BTreeMap<String, Tensor>,
    expected: BTreeMap<String, Tensor>,
    pub tower: Arc<dyn EncoderFamily>,
    pub of_tower: Rc<ParamStore>,
    pub(super) summary: Summary,
}

#[derive(Deserialize)]
pub(super) struct Summary {
    samples: Vec<Sample>,
    /// Tokens of each sample.
    lens: Vec<usize>,
    /// Patches of a picture of each camera, down and across.
    grids: Vec<[u32; 2]>,
    /// The samples whose state is dropped, for each draw.
    pub dropped: Vec<Vec<usize>>,
}

#[derive(Deserialize)]
struct Sample {
    cameras: Vec<usize>,
}

impl Fixture {
    /// Reads a fixture's folder; parameters have this `kind`.
    ///
    /// # Errors
    /// A file is missing or damaged, or does not fit the config.
    pub fn read(path: &Path, kind: Kind) -> Result<Fixture, FixtureError> {
        let mut inputs =
            vec!["input_ids", "position_ids", "actions", "weights", "state", "embodiment", "noise", "time"];
        inputs.extend(["start", "pixels_0"]);
        let folder = FixtureFolder::read(path, "make_groot.py", &inputs, &["loss", "sampled"])?;
        let model = folder.model()?;
        let own = |name: &str| name.to_owned();
        folder.expect_all(&model.specs(), &[], own)?;
        let tower = folder.vision_tower(&model)?;
        let summary: Summary = folder.summary()?;
        let cameras = summary.samples.iter().flat_map(|sample| &sample.cameras);
        if cameras.max().is_some_and(|last| *last >= summary.grids.len()) {
            return Err(folder.lacks("fixture.json", "grids of all cameras"));
        }
        let num_samples = summary.samples.len();
        let cameras: BTreeSet<usize> = summary.samples.iter().flat_map(|sample| &sample.cameras).copied().collect();
        let pixels: Vec<String> = cameras.iter().map(|camera| format!("pixels_{camera}")).collect();
        let rows = ["actions", "weights", "state", "embodiment", "start"];
        folder.expect_samples(num_samples, 0, rows.into_iter().chain(pixels.iter().map(String::as_str)))?;
        folder.expect_samples(num_samples, 1, ["noise", "time"])?;
        Ok(Fixture {
            config: published(&Keys::new(&folder.config)).map_err(|source| folder.of_config(source))?.0,
            params: folder.store(model.foundation.specs(), kind, own)?,
            of_tower: folder.store(tower.specs(), Kind::Float, own)?,
            tower,
            summary,
            inputs: folder.inputs,
            expected: folder.expected,
        })
    }

    /// Returns the numbers of all samples.
    pub fn all(&self) -> Vec<usize> {
        (0..self.summary.samples.len()).collect()
    }

    /// Returns the policy's family with so many draws of noise per sample.
    pub fn family(&self, noise_draws: u32) -> PolicyFamily<GrootConfig> {
        PolicyFamily::new(self.config.clone()).with_options(PolicyOptions { noise_draws, ..PolicyOptions::default() })
    }

    /// Builds the policy with the fixture's weights and as many draws as the fixture has.
    pub fn model(&self, policy: Policy) -> PolicyModel<GrootConfig> {
        self.family(self.summary.dropped.len() as u32).model(&self.params, policy)
    }

    /// Returns the patches of the samples' pictures, and the size of each.
    pub fn pixels(&self, samples: &[usize]) -> (Tensor, Vec<Grid>) {
        let cameras = |sample: &usize| {
            let sample = *sample;
            self.summary.samples[sample].cameras.iter().map(move |camera| (sample, *camera))
        };
        let all: Vec<(usize, usize)> = samples.iter().flat_map(cameras).collect();
        let pixels = all.iter().map(|(sample, camera)| self.inputs[&format!("pixels_{camera}")].get(*sample as i64));
        let grid = |[h, w]: [u32; 2]| Grid { t: 1, h, w };
        let grids = all.iter().map(|(_, camera)| grid(self.summary.grids[*camera])).collect();
        (Tensor::cat(&pixels.collect::<Vec<_>>(), 0), grids)
    }

    /// Returns the rows of these samples of a tensor `[N, …]`.
    pub fn of(&self, name: &str, samples: &[usize]) -> Tensor {
        rows_of(&self.inputs[name], samples)
    }

    /// Returns the columns of these samples, and where each begins and the last ends among their tokens.
    pub fn columns(&self, samples: &[usize]) -> (Columns, Vec<usize>) {
        let lens = &self.summary.lens;
        let begin = |sample: usize| lens[..sample].iter().sum::<usize>() as i64;
        let tokens = |name: &str, axis: i64| {
            let own = samples.iter().map(|&at| self.inputs[name].narrow(axis, begin(at), lens[at] as i64));
            Tensor::cat(&own.collect::<Vec<_>>(), axis)
        };
        let mut ends = vec![0];
        samples.iter().for_each(|sample| ends.push(ends[ends.len() - 1] + lens[*sample]));
        let ids = tokens("input_ids", 0);
        let all = vec![
            ids.shallow_clone(),
            tokens("position_ids", 1),
            Tensor::full_like(&ids, IGNORE_INDEX),
            self.of("actions", samples).flatten(0, 1),
            self.of("weights", samples).flatten(0, 1),
            self.of("state", samples).flatten(0, 1),
            self.of("embodiment", samples),
        ];
        (Columns::new(&self.family(1).columns().into(), all), ends)
    }

    /// Returns a micro-batch of these samples, whose loss is scaled by the weights of all samples of the fixture.
    pub fn batch(&self, samples: &[usize]) -> MicroBatch {
        let row = |sample: &usize| {
            let grids = self.pixels(&[*sample]).1;
            fixture::row(*sample, self.summary.lens[*sample], 1, grids, &*self.tower)
        };
        let loss_scale = 1.0 / self.inputs["weights"].sum(Kind::Double).double_value(&[]);
        fixture::batch(self.columns(samples), samples.iter().map(row).collect(), loss_scale)
    }

    /// Returns the fixture's noise, times and dropped states of these samples, one after the other for each draw.
    pub fn noise(&self, samples: &[usize]) -> Noise {
        let dropped = &self.summary.dropped;
        let kept =
            |sample: usize| dropped.iter().map(move |dropped| if dropped.contains(&sample) { 0f32 } else { 1.0 });
        let keeps: Vec<f32> = samples.iter().flat_map(|sample| kept(*sample)).collect();
        Noise {
            noise: draws_of(&self.inputs["noise"], samples),
            times: Vec::try_from(draws_of(&self.inputs["time"], samples)).expect("a row of times"),
            keeps: Some(Tensor::from_slice(&keeps)),
            state_noise: self.inputs.get("state_noise").map(|noise| draws_of(noise, samples)),
            dropout: [None, None],
        }
    }

    /// Returns the features `[F, D]` of these samples' pictures, one tensor for each level, computed by the tower.
    pub fn features(&self, samples: &[usize]) -> Vec<Tensor> {
        self.parts().features(self.pixels(samples))
    }

    /// Runs a recorded tape forward and backward on the pictures of these samples.
    pub fn run_tape(&self, tape: FoundationTape, samples: &[usize]) -> Found {
        self.parts().run(tape, self.pixels(samples), Policy::Keep)
    }

    fn parts(&self) -> Parts<'_> {
        let Fixture { params, tower, of_tower, .. } = self;
        Parts { params, tower: &**tower, of_tower, trains_tower: true }
    }

    /// Returns the actions `[N, H, A]` of the fixture's noise.
    pub fn act(&self, samples: &[usize]) -> Option<Tensor> {
        let (columns, ends) = self.columns(samples);
        let (start, steps) = (self.of("start", samples), self.config.num_steps as usize);
        let acting = self.config.acting(&self.params);
        let found = acting.act(
            Observed { columns: &columns, cu_seqlens: &ends, features: &self.features(samples) },
            Denoising { noise: &start.flatten(0, 1), num_steps: steps, given: None },
        );
        Some(found?.view(start.size().as_slice()))
    }
}

impl ReferenceFixture for Fixture {
    fn compare(&self, with: &mut Comparisons) {
        let all = self.all();
        self.parts().compare(with, &self.expected, [TOLERANCE, OF_GRADIENTS], |policy| {
            self.run_tape(self.model(policy).record_with(&self.batch(&all), &self.noise(&all)), &all)
        });
        with.actions(self.act(&all), &self.expected["sampled"], TOLERANCE);
    }

    fn losses(&self) -> [f64; 2] {
        let all = self.all();
        let tape = self.model(Policy::Keep).record_with(&self.batch(&all), &self.noise(&all));
        [self.parts().loss(tape, self.pixels(&all)), self.expected["loss"].double_value(&[])]
    }
}
