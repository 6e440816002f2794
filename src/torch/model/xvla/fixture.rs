//! Fixtures of X-VLA, which `tests/oracle/make_xvla.py` writes: their samples here and in lerobot.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use loongforge_core::data::IGNORE_INDEX;
use loongforge_core::message::Grid;
use serde::Deserialize;
use tch::{Device, Kind, Tensor};

use super::config::XvlaConfig;
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::columns::Columns;
use crate::model::encoder::EncoderFamily;
use crate::model::family::xvla::config_of;
use crate::model::fixture::{
    self, Comparisons, FixtureError, FixtureFolder, Found, Parts, ReferenceFixture, draws_of, rows_of,
};
use crate::model::foundation::FoundationTape;
use crate::model::policy::{
    Architecture, Denoising, Noise, Observed, PolicyFamily, PolicyModel, PolicyOptions, RobotPolicy,
};
use crate::params::ParamStore;
use crate::tape::Policy;

/// The tolerance of losses and actions, as a share of the largest value of a tensor.
const TOLERANCE: f64 = 5e-6;
/// The tolerance of gradients, which are sums over all rows in another order. Those of DaViT's first stages that the reference has in
/// float32 are up to 9e-5 off what it has in float64.
const OF_GRADIENTS: f64 = 1e-4;

/// A policy and its samples.
pub(in crate::model) struct Fixture {
    pub config: XvlaConfig,
    pub params: Rc<ParamStore>,
    pub inputs: BTreeMap<String, Tensor>,
    expected: BTreeMap<String, Tensor>,
    tower: Arc<dyn EncoderFamily>,
    of_tower: Rc<ParamStore>,
    summary: Summary,
}

#[derive(Deserialize)]
struct Summary {
    samples: Vec<Sample>,
    action_dim: usize,
}

#[derive(Deserialize)]
struct Sample {
    views: i64,
}

impl Fixture {
    /// Reads a fixture's folder; parameters have this `kind`.
    ///
    /// # Errors
    /// A file is missing or damaged, or does not fit the config.
    pub fn read(path: &Path, kind: Kind) -> Result<Fixture, FixtureError> {
        let inputs = ["images", "tokens", "actions", "domain", "noise", "time", "start"];
        let folder = FixtureFolder::read(path, "make_xvla.py", &inputs, &["loss", "of_samples", "sampled"])?;
        let model = folder.model()?;
        let own = |name: &str| name.to_owned();
        folder.expect_all(&model.specs(), &[], own)?;
        let config = config_of(&folder.config).map_err(|source| folder.of_config(source))?;
        if config.state_dim > 0 {
            folder.expect_input("state")?;
        }
        let tower = folder.vision_tower(&model)?;
        let summary: Summary = folder.summary()?;
        folder.expect_samples(summary.samples.len(), 0, ["images", "tokens", "actions", "domain", "start"])?;
        folder.expect_samples(summary.samples.len(), 1, ["noise", "time"])?;
        Ok(Fixture {
            config,
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

    /// Returns the policy's family with these options.
    pub fn family(&self, options: PolicyOptions) -> PolicyFamily<XvlaConfig> {
        PolicyFamily::new(self.config.clone()).with_options(options)
    }

    /// Returns the number of draws of noise per sample.
    pub fn num_draws(&self) -> i64 {
        self.inputs["noise"].size()[0]
    }

    /// Builds the policy with the fixture's weights and as many draws as the fixture has.
    pub fn model(&self, policy: Policy, insulate: bool) -> PolicyModel<XvlaConfig> {
        let options = PolicyOptions { noise_draws: self.num_draws() as u32, insulate, ..PolicyOptions::default() };
        self.family(options).model(&self.params, policy)
    }

    /// Returns the patches of the samples' pictures, and the size of each.
    fn pixels(&self, samples: &[usize]) -> (Tensor, Vec<Grid>) {
        let views = |sample: &usize| {
            let images = self.inputs["images"].get(*sample as i64);
            (0..self.summary.samples[*sample].views).map(move |view| images.get(view))
        };
        let pictures = samples.iter().flat_map(views).map(|image| fixture::patches(&image, &*self.tower));
        let (patches, grids): (Vec<Tensor>, Vec<Grid>) = pictures.unzip();
        (Tensor::cat(&patches, 0), grids)
    }

    fn ids(&self, sample: usize) -> Vec<i64> {
        let tokens = self.inputs["tokens"].get(sample as i64);
        let tokens = Vec::<i64>::try_from(tokens).expect("a row of whole numbers");
        let places = self.summary.samples[sample].views * self.config.view_features;
        std::iter::repeat_n(self.config.image_token, places as usize).chain(tokens).collect()
    }

    /// Returns the rows of these samples of a tensor `[N, …]`.
    fn of(&self, name: &str, samples: &[usize]) -> Tensor {
        rows_of(&self.inputs[name], samples)
    }

    fn columns(&self, samples: &[usize]) -> (Columns, Vec<usize>) {
        let ids: Vec<Vec<i64>> = samples.iter().map(|sample| self.ids(*sample)).collect();
        let mut ends = vec![0];
        ids.iter().for_each(|ids| ends.push(ends[ends.len() - 1] + ids.len()));
        let tokens = Tensor::from_slice(&ids.concat());
        let positions = Tensor::zeros([3, tokens.size()[0]], (Kind::Float, Device::Cpu));
        let actions = self.of("actions", samples);
        let (space, action_dim) = (&self.config.space, self.summary.action_dim);
        let counts: Vec<f32> = (0..space.dim()).map(|at| f32::from(space.counts(at, action_dim))).collect();
        let weights = Tensor::ones_like(&actions) * Tensor::from_slice(&counts);
        let targets = Tensor::full_like(&tokens, IGNORE_INDEX);
        let mut all = vec![tokens, positions, targets, actions.flatten(0, 1), weights.flatten(0, 1)];
        if self.config.state_dim > 0 {
            all.push(self.of("state", samples));
        }
        all.push(self.of("domain", samples));
        (Columns::new(&self.config.columns().into(), all), ends)
    }

    /// Returns the number of values of a sample's actions that count.
    fn num_targets(&self) -> i64 {
        let (space, action_dim) = (&self.config.space, self.summary.action_dim);
        self.config.horizon * (0..space.dim()).filter(|at| space.counts(*at, action_dim)).count() as i64
    }

    fn rows(&self, samples: &[usize]) -> Vec<SampleRow> {
        let row = |sample: &usize| {
            let grids = self.pixels(&[*sample]).1;
            fixture::row(*sample, self.ids(*sample).len(), self.num_targets() as u32, grids, &*self.tower)
        };
        samples.iter().map(row).collect()
    }

    /// Returns a micro-batch of these samples, whose loss is scaled by the targets of all samples of the fixture.
    pub fn batch(&self, samples: &[usize]) -> MicroBatch {
        let loss_scale = 1.0 / (self.summary.samples.len() as i64 * self.num_targets()) as f64;
        fixture::batch(self.columns(samples), self.rows(samples), loss_scale)
    }

    /// Returns the fixture's noise and times of these samples, without delays.
    pub fn noise(&self, samples: &[usize]) -> Noise {
        let [noise, times] = ["noise", "time"].map(|name| draws_of(&self.inputs[name], samples));
        Noise { noise: noise.flatten(0, 1), times, delays: Vec::new() }
    }

    /// Records these samples with the fixture's noise and runs them forward and backward.
    pub fn run(&self, model: &PolicyModel<XvlaConfig>, samples: &[usize]) -> Found {
        self.run_tape(model.record_with(&self.batch(samples), &self.noise(samples)), samples, Policy::Keep)
    }

    /// Runs a recorded tape forward and backward on the pictures of these samples.
    pub fn run_tape(&self, tape: FoundationTape, samples: &[usize], policy: Policy) -> Found {
        self.parts().run(tape, self.pixels(samples), policy)
    }

    fn parts(&self) -> Parts<'_> {
        let Fixture { params, tower, of_tower, .. } = self;
        Parts { params, tower: &**tower, of_tower, trains_tower: true }
    }

    /// Returns the actions `[N, H, A]` of the fixture's noise.
    pub fn act(&self, samples: &[usize]) -> Option<Tensor> {
        let acting = self.config.acting(&self.params);
        let (columns, ends) = self.columns(samples);
        let (start, steps) = (self.of("start", samples), self.config.num_steps as usize);
        let found = acting.act(
            Observed { columns: &columns, cu_seqlens: &ends, features: &self.parts().features(self.pixels(samples)) },
            Denoising { noise: &start.flatten(0, 1), num_steps: steps, given: None },
        );
        Some(found?.view(start.size().as_slice()))
    }
}

impl ReferenceFixture for Fixture {
    fn compare(&self, with: &mut Comparisons) {
        let all = self.all();
        self.parts().compare(with, &self.expected, [TOLERANCE, OF_GRADIENTS], |policy| {
            let tape = self.model(policy, false).record_with(&self.batch(&all), &self.noise(&all));
            self.run_tape(tape, &all, policy)
        });
        let model = self.model(Policy::Keep, false);
        for sample in &all {
            let found = self.run(&model, &[*sample]);
            with.alone(*sample, all.len(), found.loss, &self.expected["of_samples"], TOLERANCE);
        }
        let sampled = &self.expected["sampled"];
        // Where a robot has fewer numbers, the reference leaves out those behind.
        let known = |found: Tensor| found.narrow(2, 0, sampled.size()[2].min(found.size()[2]));
        with.actions(self.act(&all).map(known), sampled, TOLERANCE);
    }

    fn losses(&self) -> [f64; 2] {
        let all = self.all();
        let tape = self.model(Policy::Keep, false).record_with(&self.batch(&all), &self.noise(&all));
        [self.parts().loss(tape, self.pixels(&all)), self.expected["loss"].double_value(&[])]
    }
}
