//! A policy's fixture: its parameters and samples, and what comes of them here and in lerobot.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use loongforge_core::data::IGNORE_INDEX;
use loongforge_core::message::{Grid, ItemMeta, SampleId, Tower};
use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::super::RobotPolicy;
use super::super::config::{PolicyConfig, PolicyOptions, StateToken};
use super::super::family::{PolicyFamily, PolicyModel};
use super::super::noise::Noise;
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::columns::Columns;
use crate::model::config::ModelConfig;
use crate::model::encoder::EncoderFamily;
use crate::model::foundation::{FoundationFamily, FoundationTape};
use crate::model::objective::NoisePurpose;
use crate::model::original_names::PolicyNames;
use crate::params::{GradBuffer, ParamSpec, ParamStore};
use crate::tape::{Execution, Policy};

/// The share of the largest gradient of all that a tensor's largest value is set to for its tolerance, if it is below: those of
/// biases of keys are sums that cancel.
const SMALL: f64 = 1e-3;

pub fn folders() -> Vec<PathBuf> {
    let committed = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/policies");
    let folder = std::env::var_os("LOONGFORGE_POLICIES").map_or_else(committed, PathBuf::from);
    let mut found: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    // Policies of other builds have their own tests.
    let is_two_streams = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("pi0") || name.starts_with("smolvla")
    };
    found.retain(is_two_streams);
    found.sort();
    assert!(!found.is_empty(), "{} is empty", folder.display());
    found
}

fn json(path: PathBuf) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn tensors(path: PathBuf) -> BTreeMap<String, Tensor> {
    Tensor::read_safetensors(path).unwrap().into_iter().collect()
}

/// The share of the largest expected value that the largest difference is.
pub fn error(found: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(found.size(), expected.size());
    (found - expected).abs().max().double_value(&[]) / expected.abs().max().double_value(&[])
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

/// What a forward and backward come to.
pub struct Found {
    pub loss: f64,
    pub grads: GradBuffer,
    pub of_tower: GradBuffer,
}

/// The policy's name of a tensor.
fn ours(names: Option<PolicyNames>, name: &str) -> String {
    names.map_or_else(|| name.to_owned(), |names| names.ours(name))
}

fn store(specs: Vec<ParamSpec>, weights: &BTreeMap<String, Tensor>, names: Option<PolicyNames>) -> Rc<ParamStore> {
    let params = ParamStore::new(specs, Kind::Float, Device::Cpu);
    let ours: BTreeMap<String, &Tensor> = weights.iter().map(|(name, value)| (ours(names, name), value)).collect();
    params.ids().for_each(|id| params.set(id, ours[&params.spec(id).name]));
    Rc::new(params)
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
            name: folder.file_name().unwrap().to_string_lossy().into_owned(),
            config: model.foundation.as_policy().unwrap().as_two_streams().unwrap().clone(),
            params: store(model.foundation.specs(), &weights, names),
            of_tower: store(tower.specs(), &weights, names),
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

    pub fn family(&self, options: PolicyOptions) -> PolicyFamily {
        PolicyFamily::new(self.config.clone()).with_options(options)
    }

    pub fn num_draws(&self) -> i64 {
        self.inputs["noise"].size()[0]
    }

    pub fn model(&self, policy: Policy, insulate: bool) -> PolicyModel {
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
        let index: Vec<i64> = samples.iter().map(|sample| *sample as i64).collect();
        self.inputs[name].index_select(0, &Tensor::from_slice(&index))
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
            let grid = self.pixels(&[*sample]).1[0];
            let item = ItemMeta { tower: Tower::Vision, grid, num_features: self.tower.num_features(grid) as u32 };
            SampleRow {
                id: SampleId(*sample as u64),
                num_tokens: self.ids(*sample).len(),
                num_targets: (self.num_inside(*sample) * self.action_dim) as u32,
                target: None,
                items: vec![item; self.cameras(*sample).len()],
                purpose: NoisePurpose::Training,
            }
        };
        samples.iter().map(row).collect()
    }

    pub fn batch(&self, samples: &[usize]) -> MicroBatch {
        let (columns, cu_seqlens) = self.columns(samples);
        let num_targets: i64 = self.all().into_iter().map(|sample| self.num_inside(sample) * self.action_dim).sum();
        MicroBatch {
            columns,
            cu_seqlens,
            samples: self.rows(samples).into(),
            loss_scale: 1.0 / num_targets as f64,
            num_features: vec![
                self.pixels(samples).1.into_iter().map(|grid| self.tower.num_features(grid) as i64).sum(),
            ],
            feature_grads: true,
            row: None,
            shared_features: Vec::new(),
            past: None,
            evaluates: false,
        }
    }

    pub fn noise(&self, samples: &[usize]) -> Noise {
        let index: Vec<i64> = samples.iter().map(|sample| *sample as i64).collect();
        let index = Tensor::from_slice(&index);
        let by_sample = |name: &str| self.inputs[name].transpose(0, 1).index_select(0, &index).contiguous();
        Noise { noise: by_sample("noise").flatten(0, 2), times: by_sample("time").flatten(0, 1), delays: Vec::new() }
    }

    pub fn run(&self, model: &PolicyModel, samples: &[usize]) -> Found {
        self.run_tape(model.record_with(&self.batch(samples), &self.noise(samples)), samples)
    }

    pub fn run_tape(&self, tape: FoundationTape, samples: &[usize]) -> Found {
        let encoder = self.tower.build(&self.of_tower, Policy::Keep);
        let (pixels, grids) = self.pixels(samples);
        let made = encoder.record(&grids);
        let mut encoding = Execution::new(made.tape, self.of_tower.clone(), vec![(made.pixels, pixels)]);
        encoding.forward().unwrap();
        let (slot, output) = (tape.features[0][0], made.outputs[0]);
        let inputs = vec![(slot, encoding.value(output).shallow_clone())];
        let mut run = Execution::new(tape.tape, self.params.clone(), inputs);
        run.forward().unwrap();
        let loss = run.value(tape.loss.unwrap()).double_value(&[]);
        run.seed(tape.loss.unwrap(), Tensor::from(1f64));
        let mut grads = self.params.new_grad();
        run.backward(Some(&mut grads)).unwrap();
        let mut of_tower = self.of_tower.new_grad();
        if let Some(grad) = run.input_grad(slot) {
            encoding.seed(output, grad);
            encoding.backward(Some(&mut of_tower)).unwrap();
        }
        Found { loss, grads, of_tower }
    }

    pub fn features(&self, samples: &[usize]) -> Tensor {
        let encoder = self.tower.build(&self.of_tower, Policy::Keep);
        let (pixels, grids) = self.pixels(samples);
        let made = encoder.record(&grids);
        let mut run = Execution::forward_only(made.tape, self.of_tower.clone(), vec![(made.pixels, pixels)]);
        run.forward().unwrap();
        run.value(made.outputs[0]).shallow_clone()
    }

    /// Actions `[N, H, A]` of the fixture's noise.
    pub fn act(&self, samples: &[usize]) -> Tensor {
        let acting = PolicyFamily::new(self.config.clone()).acting(&self.params);
        let (columns, ends) = self.columns(samples);
        let (start, steps) = (self.of("start", samples), self.config.num_steps as usize);
        let found = acting.act(&columns, &ends, &[self.features(samples)], &start.flatten(0, 1), steps);
        found.view(start.size().as_slice())
    }

    /// The same where the first actions are `given`, `[N, d, A]`; `None`: the policy cannot.
    pub fn act_after(&self, samples: &[usize], given: &Tensor) -> Option<Tensor> {
        let acting = PolicyFamily::new(self.config.clone()).acting(&self.params);
        let (columns, ends) = self.columns(samples);
        let (start, steps) = (self.of("start", samples), self.config.num_steps as usize);
        let features = [self.features(samples)];
        let found = acting.act_after(&columns, &ends, &features, &start.flatten(0, 1), steps, given)?;
        Some(found.view(start.size().as_slice()))
    }

    /// The largest error of gradients, with its parameter.
    pub fn gradients(&self, found: &Found) -> (f64, String) {
        let stores = [(&self.params, &found.grads), (&self.of_tower, &found.of_tower)];
        let stores = stores.into_iter().take(if self.trains_tower { 2 } else { 1 });
        let all = stores.flat_map(|(params, grads)| params.trained_ids().map(move |id| (params, grads, id)));
        let of_grads = self.expected.iter().filter(|(name, _)| name.starts_with("grad/"));
        let most = of_grads.map(|(_, grad)| grad.abs().max().double_value(&[])).fold(0f64, f64::max);
        let mut largest = (0f64, String::new());
        let mut left: Vec<&String> = self.expected.keys().filter(|name| name.starts_with("grad/")).collect();
        for (params, grads, id) in all {
            let (spec, grad) = (params.spec(id), grads.view(id));
            let name = spec
                .pieces
                .iter()
                .map(|piece| format!("grad/{}", piece.name))
                .find(|name| self.expected.contains_key(name));
            let name = name.unwrap_or_else(|| panic!("the reference has no gradient of {}", spec.name));
            left.retain(|other| **other != name);
            let expected = &self.expected[&name];
            // Queries of the last layer's prefix meet keys, and nothing reads what they find.
            if expected.abs().max().double_value(&[]) == 0.0 {
                assert!(spec.name.contains("q_proj") && grad.abs().max().double_value(&[]) == 0.0, "{}", spec.name);
                continue;
            }
            let off = (grad.view(expected.size().as_slice()) - expected).abs().max().double_value(&[]);
            let off = off / expected.abs().max().double_value(&[]).max(SMALL * most);
            // Not `max`, which drops a NaN.
            if off.is_nan() || off > largest.0 {
                largest = (off, spec.name.clone());
            }
        }
        assert!(left.is_empty(), "{left:?}");
        largest
    }
}
