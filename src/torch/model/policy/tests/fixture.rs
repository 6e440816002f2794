//! A policy's fixture: its parameters and samples, and what comes of them here and in lerobot.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use loongforge_core::data::IGNORE_INDEX;
use loongforge_core::message::{Grid, Tower};
use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::super::config::{PolicyConfig, PolicyOptions, StateToken};
use super::super::family::{PolicyFamily, PolicyModel};
use super::super::fixtures::{self, Found, Parts, draws_of, index, json, store, tensors};
use super::super::noise::Noise;
use super::super::{Denoising, Observed, RobotPolicy};
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::columns::Columns;
use crate::model::config::ModelConfig;
use crate::model::encoder::EncoderFamily;
use crate::model::foundation::{FoundationFamily, FoundationTape};
use crate::model::original_names::PolicyNames;
use crate::params::{ParamSpec, ParamStore};
use crate::tape::Policy;

pub fn folders() -> Vec<PathBuf> {
    fixtures::folders(&["pi0", "smolvla"])
}

pub struct Fixture {
    pub name: String,
    pub config: PolicyConfig,
    pub tower: std::sync::Arc<dyn EncoderFamily>,
    pub params: Rc<ParamStore>,
    pub of_tower: Rc<ParamStore>,
    /// False if the reference has no gradients of the tower, because the config freezes it.
    pub trains_tower: bool,
    pub samples: Vec<Value>,
    pub action_dim: i64,
    pub inputs: BTreeMap<String, Tensor>,
    pub expected: BTreeMap<String, Tensor>,
    /// What follows each sample's prompt, to be predicted; none but under [`Fixture::with_answers`].
    pub answers: Vec<Vec<i64>>,
}

/// The policy's name of a tensor.
fn ours(names: Option<PolicyNames>, name: &str) -> String {
    names.map_or_else(|| name.to_owned(), |names| names.ours(name))
}

impl Fixture {
    pub fn read(folder: &Path) -> Fixture {
        let config = json(folder.join("config.json"));
        let model = ModelConfig::from_hf(&config).unwrap();
        let weights = tensors(folder.join("model.safetensors"));
        let names = PolicyNames::of(weights.keys().map(String::as_str));
        let tower = model.towers.get(Tower::Vision).unwrap().clone();
        let summary = json(folder.join("fixture.json"));
        let [inputs, expected] = ["inputs", "expected"].map(|name| tensors(folder.join(format!("{name}.safetensors"))));
        let specs: Vec<ParamSpec> = model.specs();
        let known =
            |name: &String| specs.iter().flat_map(|spec| &spec.pieces).any(|piece| piece.name == ours(names, name));
        let others: Vec<&String> = weights.keys().filter(|name| !known(name)).collect();
        let is_carried =
            |name: &&String| model.carried.prefixes.iter().any(|prefix| ours(names, name).starts_with(prefix));
        assert!(others.len() == 1 && others.iter().all(is_carried), "{others:?}");
        Fixture {
            name: fixtures::name(folder),
            config: model.foundation.as_policy().unwrap().as_two_streams().unwrap().clone(),
            params: store(model.foundation.specs(), &weights, Kind::Float, |name| ours(names, name)),
            of_tower: store(tower.specs(), &weights, Kind::Float, |name| ours(names, name)),
            tower,
            trains_tower: !["train_expert_only", "freeze_vision_encoder"].iter().any(|key| config[*key] == true),
            samples: summary["samples"].as_array().unwrap().clone(),
            action_dim: summary["action_dim"].as_i64().unwrap(),
            inputs,
            expected,
            answers: Vec::new(),
        }
    }

    /// The same with the answers of `tests/oracle/make_answers.py`, parameters as `options` have them, and what lerobot's parts make of
    /// these answers; `None` where the fixture has none.
    pub fn with_answers(
        mut self,
        folder: &Path,
        options: PolicyOptions,
    ) -> Option<(Fixture, BTreeMap<String, Tensor>)> {
        let path = folder.join("answers.safetensors");
        let found = path.is_file().then(|| tensors(path))?;
        let lens = Vec::<i64>::try_from(&found["lens"]).unwrap();
        let answer = |(row, len): (i64, &i64)| Vec::try_from(found["answers"].get(row).narrow(0, 0, *len)).unwrap();
        self.answers = (0..).zip(&lens).map(answer).collect();
        let params = ParamStore::new(self.family(options).specs(), Kind::Float, Device::Cpu);
        params.ids().for_each(|id| params.set(id, &self.params.get(&params.spec(id).name)));
        self.params = Rc::new(params);
        Some((self, found))
    }

    pub fn all(&self) -> Vec<usize> {
        (0..self.samples.len()).collect()
    }

    pub fn family(&self, options: PolicyOptions) -> PolicyFamily<PolicyConfig> {
        PolicyFamily::new(self.config.clone()).with_options(options)
    }

    pub fn num_draws(&self) -> i64 {
        self.inputs["noise"].size()[0]
    }

    pub fn model(&self, policy: Policy, insulate: bool) -> PolicyModel<PolicyConfig> {
        let options = PolicyOptions { noise_draws: self.num_draws() as u32, insulate, ..PolicyOptions::default() };
        self.family(options).model(&self.params, policy)
    }

    /// Actions of a sample that lie within its episode, where others are left out of the loss.
    pub fn num_inside(&self, sample: usize) -> i64 {
        self.samples[sample]["inside"].as_i64().unwrap_or(self.config.horizon).min(self.config.horizon)
    }

    pub fn cameras(&self, sample: usize) -> Vec<i64> {
        self.samples[sample]["cameras"].as_array().unwrap().iter().map(|camera| camera.as_i64().unwrap()).collect()
    }

    /// The patches of the samples' pictures, and the size of each.
    pub fn pixels(&self, samples: &[usize]) -> (Tensor, Vec<Grid>) {
        let images = &self.inputs["images"];
        let patch = ((self.tower.patch_dim() / 3) as f64).sqrt() as i64;
        let side = images.size()[3] / patch;
        let of = |(sample, camera): (usize, i64)| {
            let image = images.get(camera).get(sample as i64).view([3, side, patch, side, patch]);
            image.permute([1, 3, 0, 2, 4]).reshape([side * side, -1])
        };
        let pictures: Vec<(usize, i64)> = samples
            .iter()
            .flat_map(|sample| self.cameras(*sample).into_iter().map(|camera| (*sample, camera)))
            .collect();
        let grid = Grid { t: 1, h: side as u32, w: side as u32 };
        (Tensor::cat(&pictures.iter().copied().map(of).collect::<Vec<_>>(), 0), vec![grid; pictures.len()])
    }

    pub fn ids(&self, sample: usize) -> Vec<i64> {
        let prompt = self.samples[sample]["prompt"].as_i64().unwrap();
        let tokens = Vec::<i64>::try_from(self.inputs["tokens"].get(sample as i64).narrow(0, 0, prompt)).unwrap();
        let grid = self.pixels(&[sample]).1[0];
        let places = self.cameras(sample).len() * self.tower.num_features(grid);
        let answer = self.answers.get(sample).into_iter().flatten().copied();
        std::iter::repeat_n(self.config.image_token, places).chain(tokens).chain(answer).collect()
    }

    /// Rows of these samples of a tensor `[N, …]`.
    pub fn of(&self, name: &str, samples: &[usize]) -> Tensor {
        self.inputs[name].index_select(0, &index(samples))
    }

    pub fn columns(&self, samples: &[usize]) -> (Columns, Vec<usize>) {
        let ids: Vec<Vec<i64>> = samples.iter().map(|sample| self.ids(*sample)).collect();
        let mut ends = vec![0];
        ids.iter().for_each(|ids| ends.push(ends[ends.len() - 1] + ids.len()));
        let tokens = Tensor::from_slice(&ids.concat());
        let positions = Tensor::zeros([3, tokens.size()[0]], (Kind::Float, Device::Cpu));
        let actions = self.of("actions", samples);
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
            all.push(self.of("state", samples));
        }
        (Columns::new(&PolicyFamily::new(self.config.clone()).columns().into(), all), ends)
    }

    pub fn rows(&self, samples: &[usize]) -> Vec<SampleRow> {
        let row = |sample: &usize| {
            let num_targets = (self.num_inside(*sample) * self.action_dim) as u32;
            let grids = self.pixels(&[*sample]).1;
            fixtures::row(*sample, self.ids(*sample).len(), num_targets, grids, &*self.tower)
        };
        samples.iter().map(row).collect()
    }

    pub fn batch(&self, samples: &[usize]) -> MicroBatch {
        let num_targets: i64 = self.all().into_iter().map(|sample| self.num_inside(sample) * self.action_dim).sum();
        fixtures::batch(self.columns(samples), self.rows(samples), 1.0 / num_targets as f64)
    }

    pub fn noise(&self, samples: &[usize]) -> Noise {
        let [noise, times] = ["noise", "time"].map(|name| draws_of(&self.inputs[name], samples));
        Noise { noise: noise.flatten(0, 1), times, delays: Vec::new() }
    }

    pub fn run(&self, model: &PolicyModel<PolicyConfig>, samples: &[usize]) -> Found {
        self.run_tape(model.record_with(&self.batch(samples), &self.noise(samples)), samples)
    }

    pub fn run_tape(&self, tape: FoundationTape, samples: &[usize]) -> Found {
        self.parts().run(tape, self.pixels(samples), Policy::Keep)
    }

    fn parts(&self) -> Parts<'_> {
        let Fixture { params, tower, of_tower, trains_tower, .. } = self;
        Parts { params, tower: &**tower, of_tower, trains_tower: *trains_tower }
    }

    pub fn features(&self, samples: &[usize]) -> Vec<Tensor> {
        self.parts().features(self.pixels(samples))
    }

    /// Actions `[N, H, A]` of the fixture's noise.
    pub fn act(&self, samples: &[usize]) -> Tensor {
        self.act_after(samples, None).unwrap()
    }

    /// The same where the first actions are `given`, `[N, d, A]`; `None`: the policy cannot.
    pub fn act_after(&self, samples: &[usize], given: Option<&Tensor>) -> Option<Tensor> {
        let acting = self.config.acting(&self.params);
        let (columns, ends) = self.columns(samples);
        let (start, num_steps) = (self.of("start", samples), self.config.num_steps as usize);
        let observed = Observed { columns: &columns, cu_seqlens: &ends, features: &self.features(samples) };
        let found = acting.act(observed, Denoising { noise: &start.flatten(0, 1), num_steps, given })?;
        Some(found.view(start.size().as_slice()))
    }

    pub fn gradients(&self, found: &Found) -> (f64, String) {
        self.parts().gradients(found, &self.expected)
    }
}
