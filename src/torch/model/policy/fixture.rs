//! Fixtures of policies of two streams, which `tests/oracle/make_policies.py` writes: their samples here and in lerobot.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use loongforge_core::data::IGNORE_INDEX;
use loongforge_core::message::Grid;
use serde::Deserialize;
use tch::{Device, Kind, Tensor};

use super::config::{PolicyConfig, PolicyOptions, StateToken};
use super::family::{PolicyFamily, PolicyModel};
use super::noise::Noise;
use super::robot::{Denoising, Observed, RobotPolicy};
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::columns::Columns;
use crate::model::encoder::EncoderFamily;
use crate::model::fixture::{
    self, Comparisons, FixtureError, FixtureFolder, Found, Parts, ReferenceFixture, draws_of, rows_of,
};
use crate::model::foundation::{FoundationFamily, FoundationTape};
use crate::model::original_names::PolicyNames;
use crate::params::ParamStore;
use crate::tape::Policy;

pub(super) mod answers;

/// The tolerance of losses and actions, as a share of the largest value of a tensor.
const TOLERANCE: f64 = 5e-6;
/// The tolerance of gradients, which are sums over all rows in another order.
const OF_GRADIENTS: f64 = 2e-5;

/// A policy of two streams and its samples.
pub(in crate::model) struct Fixture {
    pub config: PolicyConfig,
    pub params: Rc<ParamStore>,
    pub samples: Vec<Sample>,
    pub inputs: BTreeMap<String, Tensor>,
    pub expected: BTreeMap<String, Tensor>,
    /// The tokens behind each sample's prompt that are to be predicted; empty except in a fixture made by [`Fixture::with_answers`].
    pub answers: Vec<Vec<i64>>,
    /// The tensors of `answers.safetensors`, where `tests/oracle/make_answers.py` has added it.
    of_answers: Option<BTreeMap<String, Tensor>>,
    tower: Arc<dyn EncoderFamily>,
    of_tower: Rc<ParamStore>,
    /// False if the reference has no gradients of the tower, because the config freezes it.
    trains_tower: bool,
    /// Numbers of an action that count; those behind them are padding.
    pub action_dim: i64,
}

/// The prompt, the cameras and the number of counted actions of a sample.
#[derive(Clone, Deserialize)]
pub(in crate::model) struct Sample {
    pub prompt: i64,
    pub cameras: Vec<i64>,
    /// Actions that lie within its episode, where others are left out of the loss.
    pub inside: Option<i64>,
}

#[derive(Deserialize)]
struct Summary {
    samples: Vec<Sample>,
    action_dim: i64,
}

impl Fixture {
    /// Reads a fixture's folder; parameters have this `kind`.
    ///
    /// # Errors
    /// A file is missing or damaged, or does not fit the config.
    pub fn read(path: &Path, kind: Kind) -> Result<Fixture, FixtureError> {
        let inputs = ["images", "tokens", "actions", "noise", "time", "start"];
        let folder = FixtureFolder::read(path, "make_policies.py", &inputs, &["loss", "of_samples", "sampled"])?;
        let model = folder.model()?;
        let names = PolicyNames::of(folder.weights.keys().map(String::as_str));
        let ours = |name: &str| names.map_or_else(|| name.to_owned(), |names| names.ours(name));
        folder.expect_all(&model.specs(), model.carried.prefixes, ours)?;
        let two_streams = model.foundation.as_policy().and_then(RobotPolicy::as_two_streams);
        let config = two_streams.ok_or_else(|| folder.lacks("config.json", "a policy of two streams"))?.clone();
        if config.state != StateToken::None {
            folder.expect_input("state")?;
        }
        let tower = folder.vision_tower(&model)?;
        let Summary { samples, action_dim } = folder.summary()?;
        folder.expect_samples(samples.len(), 0, ["tokens", "actions", "start"])?;
        folder.expect_samples(samples.len(), 1, ["images", "noise", "time"])?;
        let of_answers = path.join("answers.safetensors");
        Ok(Fixture {
            config,
            params: folder.store(model.foundation.specs(), kind, ours)?,
            of_tower: folder.store(tower.specs(), Kind::Float, ours)?,
            tower,
            trains_tower: !["train_expert_only", "freeze_vision_encoder"].iter().any(|key| folder.config[*key] == true),
            samples,
            action_dim,
            of_answers: of_answers.is_file().then(|| fixture::tensors(&of_answers)).transpose()?,
            answers: Vec::new(),
            inputs: folder.inputs,
            expected: folder.expected,
        })
    }

    /// Returns the numbers of all samples.
    pub fn all(&self) -> Vec<usize> {
        (0..self.samples.len()).collect()
    }

    /// Returns the policy's family with these options.
    pub fn family(&self, options: PolicyOptions) -> PolicyFamily<PolicyConfig> {
        PolicyFamily::new(self.config.clone()).with_options(options)
    }

    /// Returns the number of draws of noise per sample.
    pub fn num_draws(&self) -> i64 {
        self.inputs["noise"].size()[0]
    }

    /// Builds the policy with the fixture's weights and as many draws as the fixture has.
    pub fn model(&self, policy: Policy, insulate: bool) -> PolicyModel<PolicyConfig> {
        let options = PolicyOptions { noise_draws: self.num_draws() as u32, insulate, ..PolicyOptions::default() };
        self.family(options).model(&self.params, policy)
    }

    /// Returns the number of actions of a sample that lie within its episode; the others are left out of the loss.
    fn num_inside(&self, sample: usize) -> i64 {
        self.samples[sample].inside.unwrap_or(self.config.horizon).min(self.config.horizon)
    }

    /// Returns the patches of the samples' pictures, and the size of each.
    fn pixels(&self, samples: &[usize]) -> (Tensor, Vec<Grid>) {
        pictures(&self.inputs["images"], samples, |sample| self.samples[sample].cameras.as_slice(), &*self.tower)
    }

    fn ids(&self, sample: usize) -> Vec<i64> {
        let tokens = row(&self.inputs["tokens"], sample, self.samples[sample].prompt);
        let (_, grids) = self.pixels(&[sample]);
        let places = grids.iter().map(|grid| self.tower.num_features(*grid)).sum();
        let answer = self.answers.get(sample).into_iter().flatten().copied();
        std::iter::repeat_n(self.config.image_token, places).chain(tokens).chain(answer).collect()
    }

    fn columns(&self, samples: &[usize]) -> (Columns, Vec<usize>) {
        let ids: Vec<Vec<i64>> = samples.iter().map(|sample| self.ids(*sample)).collect();
        let mut ends = vec![0];
        ids.iter().for_each(|ids| ends.push(ends[ends.len() - 1] + ids.len()));
        let tokens = Tensor::from_slice(&ids.concat());
        let positions = Tensor::zeros([3, tokens.size()[0]], (Kind::Float, Device::Cpu));
        let actions = rows_of(&self.inputs["actions"], samples);
        let weights = Tensor::zeros_like(&actions);
        for (row, sample) in (0..).zip(samples) {
            let inside = weights.get(row).narrow(0, 0, self.num_inside(*sample));
            let _ = inside.narrow(1, 0, self.action_dim).fill_(1.0);
        }
        let target = |sample: &usize| {
            let answer = self.answers.get(*sample).map_or(&[][..], Vec::as_slice);
            let mut targets = vec![IGNORE_INDEX; self.ids(*sample).len()];
            let first = targets.len() - answer.len() - 1;
            targets[first..first + answer.len()].copy_from_slice(answer);
            targets
        };
        let targets = Tensor::from_slice(&samples.iter().flat_map(target).collect::<Vec<i64>>());
        let mut all = vec![tokens, positions, targets, actions.flatten(0, 1), weights.flatten(0, 1)];
        if self.config.state != StateToken::None {
            all.push(rows_of(&self.inputs["state"], samples));
        }
        (Columns::new(&PolicyFamily::new(self.config.clone()).columns().into(), all), ends)
    }

    /// Returns these samples as a plan describes them: length, targets and grids of pictures.
    pub fn rows(&self, samples: &[usize]) -> Vec<SampleRow> {
        let row = |sample: &usize| {
            let num_targets = (self.num_inside(*sample) * self.action_dim) as u32;
            let grids = self.pixels(&[*sample]).1;
            fixture::row(*sample, self.ids(*sample).len(), num_targets, grids, &*self.tower)
        };
        samples.iter().map(row).collect()
    }

    /// Returns a micro-batch of these samples, whose loss is scaled by the targets of all samples of the fixture.
    pub fn batch(&self, samples: &[usize]) -> MicroBatch {
        let num_targets: i64 = self.all().into_iter().map(|sample| self.num_inside(sample) * self.action_dim).sum();
        fixture::batch(self.columns(samples), self.rows(samples), 1.0 / num_targets as f64)
    }

    /// Returns the fixture's noise and times of these samples, without delays.
    pub fn noise(&self, samples: &[usize]) -> Noise {
        let [noise, times] = ["noise", "time"].map(|name| draws_of(&self.inputs[name], samples));
        Noise { noise: noise.flatten(0, 1), times, delays: Vec::new() }
    }

    /// Records these samples with the fixture's noise and runs them forward and backward.
    pub fn run(&self, model: &PolicyModel<PolicyConfig>, samples: &[usize]) -> Found {
        self.run_tape(model.record_with(&self.batch(samples), &self.noise(samples)), samples)
    }

    /// Runs a recorded tape forward and backward on the pictures of these samples.
    pub fn run_tape(&self, tape: FoundationTape, samples: &[usize]) -> Found {
        self.parts().run(tape, self.pixels(samples), Policy::Keep)
    }

    /// Returns the parameters and the tower that run a tape.
    pub fn parts(&self) -> Parts<'_> {
        let Fixture { params, tower, of_tower, trains_tower, .. } = self;
        Parts { params, tower: &**tower, of_tower, trains_tower: *trains_tower }
    }

    /// Returns the actions `[N, H, A]` of the fixture's noise, where the first actions may be `given`, `[N, d, A]`; `None`: the policy
    /// cannot.
    pub fn act(&self, samples: &[usize], given: Option<&Tensor>) -> Option<Tensor> {
        let acting = self.config.acting(&self.params);
        let (columns, ends) = self.columns(samples);
        let (start, num_steps) = (rows_of(&self.inputs["start"], samples), self.config.num_steps as usize);
        let features = self.parts().features(self.pixels(samples));
        let observed = Observed { columns: &columns, cu_seqlens: &ends, features: &features };
        let found = acting.act(observed, Denoising { noise: &start.flatten(0, 1), num_steps, given })?;
        Some(found.view(start.size().as_slice()))
    }
}

impl ReferenceFixture for Fixture {
    fn compare(&self, with: &mut Comparisons) {
        let all = self.all();
        self.parts().compare(with, &self.expected, [TOLERANCE, OF_GRADIENTS], |policy| {
            self.run(&self.model(policy, false), &all)
        });
        let model = self.model(Policy::Keep, false);
        for sample in &all {
            let found = self.run(&model, &[*sample]);
            with.alone(*sample, all.len(), found.loss, &self.expected["of_samples"], TOLERANCE);
        }
        with.actions(self.act(&all, None), &self.expected["sampled"], TOLERANCE);
        self.compare_answers(with);
    }

    fn losses(&self) -> [f64; 2] {
        let tape = self.model(Policy::Keep, false).record_with(&self.batch(&self.all()), &self.noise(&self.all()));
        let found = self.parts().loss(tape, self.pixels(&self.all()));
        [found, self.expected["loss"].double_value(&[])]
    }
}

/// Returns the first numbers of a row `[N, T]` of whole numbers.
pub(in crate::model) fn row(x: &Tensor, sample: usize, len: i64) -> Vec<i64> {
    Vec::try_from(x.get(sample as i64).narrow(0, 0, len)).expect("a row of whole numbers")
}

/// Returns the patches of the samples' pictures, and the size of each, of `images` `[cameras, samples, 3, rows, columns]`.
pub(in crate::model) fn pictures<'a>(
    images: &Tensor,
    samples: &[usize],
    cameras: impl Fn(usize) -> &'a [i64],
    tower: &dyn EncoderFamily,
) -> (Tensor, Vec<Grid>) {
    let of = |sample: &usize| cameras(*sample).iter().map(|camera| images.get(*camera).get(*sample as i64)).collect();
    let all: Vec<Tensor> = samples.iter().flat_map(|sample| -> Vec<Tensor> { of(sample) }).collect();
    let (patches, grids): (Vec<Tensor>, Vec<Grid>) = all.iter().map(|image| fixture::patches(image, tower)).unzip();
    (Tensor::cat(&patches, 0), grids)
}
