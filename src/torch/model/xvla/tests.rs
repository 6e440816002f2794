//! lerobot's numbers: losses, gradients of all parameters and sampled actions of fixtures that `tests/oracle/make_xvla.py` makes.
//! `LOONGFORGE_POLICIES` has those of another folder read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use loongforge_core::data::IGNORE_INDEX;
use loongforge_core::message::{Grid, Tower};
use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::config::XvlaConfig;
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::columns::Columns;
use crate::model::config::ModelConfig;
use crate::model::encoder::EncoderFamily;
use crate::model::foundation::{FoundationFamily, FoundationTape};
use crate::model::objective::{FlowSettings, LossKind};
use crate::model::policy::checks;
use crate::model::policy::fixtures::{self, Found, Parts, draws_of, error, index, json, store, tensors};
use crate::model::policy::{
    Architecture, Denoising, Noise, Observed, PolicyFamily, PolicyModel, PolicyOptions, RobotPolicy,
};
use crate::params::ParamStore;
use crate::tape::{Execution, Policy};

/// The tolerance of losses and actions, as a share of the largest value of a tensor.
const TOLERANCE: f64 = 5e-6;
/// That of gradients: sums over all rows, in another order. Those of DaViT's first stages that the reference has in float32 are up to
/// 9e-5 off what it has in float64.
const OF_GRADIENTS: f64 = 1e-4;
fn folders() -> Vec<PathBuf> {
    fixtures::folders(&["xvla"])
}

struct Fixture {
    name: String,
    config: XvlaConfig,
    tower: Arc<dyn EncoderFamily>,
    params: Rc<ParamStore>,
    of_tower: Rc<ParamStore>,
    samples: Vec<Value>,
    action_dim: usize,
    inputs: BTreeMap<String, Tensor>,
    expected: BTreeMap<String, Tensor>,
}

impl Fixture {
    fn read(folder: &Path) -> Fixture {
        let config = json(folder.join("config.json"));
        let model = ModelConfig::from_hf(&config).unwrap();
        let weights = tensors(folder.join("model.safetensors"));
        let tower = model.towers.get(Tower::Vision).unwrap().clone();
        let [inputs, expected] = ["inputs", "expected"].map(|name| tensors(folder.join(format!("{name}.safetensors"))));
        let specs = model.specs();
        let known = |name: &String| specs.iter().flat_map(|spec| &spec.pieces).any(|piece| piece.name == *name);
        let others: Vec<&String> = weights.keys().filter(|name| !known(name)).collect();
        assert!(others.is_empty(), "{others:?}");
        let summary = json(folder.join("fixture.json"));
        Fixture {
            name: fixtures::name(folder),
            params: store(model.foundation.specs(), &weights, Kind::Float, str::to_owned),
            of_tower: store(tower.specs(), &weights, Kind::Float, str::to_owned),
            config: crate::model::family::xvla::config_of(&config).unwrap(),
            tower,
            samples: summary["samples"].as_array().unwrap().clone(),
            action_dim: summary["action_dim"].as_u64().unwrap() as usize,
            inputs,
            expected,
        }
    }

    fn all(&self) -> Vec<usize> {
        (0..self.samples.len()).collect()
    }

    fn family(&self, options: PolicyOptions) -> PolicyFamily<XvlaConfig> {
        PolicyFamily::new(self.config.clone()).with_options(options)
    }

    fn num_draws(&self) -> i64 {
        self.inputs["noise"].size()[0]
    }

    fn model(&self, policy: Policy, insulate: bool) -> PolicyModel<XvlaConfig> {
        let options = PolicyOptions { noise_draws: self.num_draws() as u32, insulate, ..PolicyOptions::default() };
        self.family(options).model(&self.params, policy)
    }

    fn number(&self, sample: usize, key: &str) -> i64 {
        self.samples[sample][key].as_i64().unwrap()
    }

    /// The patches of the samples' pictures, and the size of each.
    fn pixels(&self, samples: &[usize]) -> (Tensor, Vec<Grid>) {
        let images = &self.inputs["images"];
        let patch = ((self.tower.patch_dim() / 3) as f64).sqrt() as i64;
        let [rows, columns] = [3, 4].map(|axis: usize| images.size()[axis] / patch);
        let of = |(sample, view): (usize, i64)| {
            let image = images.get(sample as i64).get(view).view([3, rows, patch, columns, patch]);
            image.permute([1, 3, 0, 2, 4]).reshape([rows * columns, -1])
        };
        let views =
            samples.iter().flat_map(|sample| (0..self.number(*sample, "views")).map(move |view| (*sample, view)));
        let pictures: Vec<Tensor> = views.map(of).collect();
        let grid = Grid { t: 1, h: rows as u32, w: columns as u32 };
        (Tensor::cat(&pictures, 0), vec![grid; pictures.len()])
    }

    fn ids(&self, sample: usize) -> Vec<i64> {
        let tokens = Vec::<i64>::try_from(self.inputs["tokens"].get(sample as i64)).unwrap();
        let places = self.number(sample, "views") * self.config.view_features;
        std::iter::repeat_n(self.config.image_token, places as usize).chain(tokens).collect()
    }

    /// Rows of these samples of a tensor `[N, …]`.
    fn of(&self, name: &str, samples: &[usize]) -> Tensor {
        self.inputs[name].index_select(0, &index(samples))
    }

    fn columns(&self, samples: &[usize]) -> (Columns, Vec<usize>) {
        let ids: Vec<Vec<i64>> = samples.iter().map(|sample| self.ids(*sample)).collect();
        let mut ends = vec![0];
        ids.iter().for_each(|ids| ends.push(ends[ends.len() - 1] + ids.len()));
        let tokens = Tensor::from_slice(&ids.concat());
        let positions = Tensor::zeros([3, tokens.size()[0]], (Kind::Float, Device::Cpu));
        let actions = self.of("actions", samples);
        let space = &self.config.space;
        let counts: Vec<f32> = (0..space.dim()).map(|at| f32::from(space.counts(at, self.action_dim))).collect();
        let weights = Tensor::ones_like(&actions) * Tensor::from_slice(&counts);
        let targets = Tensor::full_like(&tokens, IGNORE_INDEX);
        let mut all = vec![tokens, positions, targets, actions.flatten(0, 1), weights.flatten(0, 1)];
        if self.config.state_dim > 0 {
            all.push(self.of("state", samples));
        }
        all.push(self.of("domain", samples));
        (Columns::new(&self.config.columns().into(), all), ends)
    }

    /// The numbers of actions of a sample that count.
    fn num_targets(&self) -> i64 {
        let space = &self.config.space;
        self.config.horizon * (0..space.dim()).filter(|at| space.counts(*at, self.action_dim)).count() as i64
    }

    fn rows(&self, samples: &[usize]) -> Vec<SampleRow> {
        let row = |sample: &usize| {
            let grids = self.pixels(&[*sample]).1;
            assert_eq!(self.tower.num_features(grids[0]) as i64, self.config.view_features);
            fixtures::row(*sample, self.ids(*sample).len(), self.num_targets() as u32, grids, &*self.tower)
        };
        samples.iter().map(row).collect()
    }

    fn batch(&self, samples: &[usize]) -> MicroBatch {
        let loss_scale = 1.0 / (self.samples.len() as i64 * self.num_targets()) as f64;
        fixtures::batch(self.columns(samples), self.rows(samples), loss_scale)
    }

    fn noise(&self, samples: &[usize]) -> Noise {
        let [noise, times] = ["noise", "time"].map(|name| draws_of(&self.inputs[name], samples));
        Noise { noise: noise.flatten(0, 1), times, delays: Vec::new() }
    }

    fn run(&self, model: &PolicyModel<XvlaConfig>, samples: &[usize], policy: Policy) -> Found {
        self.run_tape(model.record_with(&self.batch(samples), &self.noise(samples)), samples, policy)
    }

    fn run_tape(&self, tape: FoundationTape, samples: &[usize], policy: Policy) -> Found {
        self.parts().run(tape, self.pixels(samples), policy)
    }

    fn parts(&self) -> Parts<'_> {
        let Fixture { params, tower, of_tower, .. } = self;
        Parts { params, tower: &**tower, of_tower, trains_tower: true }
    }

    fn features(&self, samples: &[usize]) -> Vec<Tensor> {
        self.parts().features(self.pixels(samples))
    }

    /// Actions `[N, H, A]` of the fixture's noise.
    fn act(&self, samples: &[usize]) -> Tensor {
        let acting = self.config.acting(&self.params);
        let (columns, ends) = self.columns(samples);
        let (start, steps) = (self.of("start", samples), self.config.num_steps as usize);
        let found = acting.act(
            Observed { columns: &columns, cu_seqlens: &ends, features: &self.features(samples) },
            Denoising { noise: &start.flatten(0, 1), num_steps: steps, given: None },
        );
        found.unwrap().view(start.size().as_slice())
    }

    fn gradients(&self, found: &Found) -> (f64, String) {
        self.parts().gradients(found, &self.expected)
    }
}

#[test]
fn packed_samples_have_lerobots_losses_and_gradients() {
    for folder in folders() {
        let fixture = Fixture::read(&folder);
        let expected = fixture.expected["loss"].double_value(&[]);
        checks::matches_the_reference(&fixture.name, expected, [TOLERANCE, OF_GRADIENTS], |policy| {
            let found = fixture.run(&fixture.model(policy, false), &fixture.all(), policy);
            (found.loss, fixture.gradients(&found))
        });
    }
}

#[test]
fn actions_are_lerobots_of_one_noise() {
    for folder in folders() {
        let fixture = Fixture::read(&folder);
        let expected = &fixture.expected["sampled"];
        // Where a robot has fewer numbers, the reference leaves out those behind.
        let found = fixture.act(&fixture.all()).narrow(2, 0, expected.size()[2]);
        let off = error(&found, expected);
        println!("{}: actions {off:.1e}", fixture.name);
        assert!(off < TOLERANCE, "{}", fixture.name);
        let alone: Vec<Tensor> = fixture.all().into_iter().map(|sample| fixture.act(&[sample])).collect();
        assert!(error(&fixture.act(&fixture.all()), &Tensor::cat(&alone, 0)) < 1e-5, "{}", fixture.name);
    }
}

/// Losses, and gradients of all parameters, of samples alone and in any order.
#[test]
fn packed_samples_are_what_they_are_alone() {
    for folder in folders() {
        let fixture = Fixture::read(&folder);
        let model = fixture.model(Policy::Keep, false);
        let order: Vec<usize> = fixture.all().into_iter().rev().collect();
        let together = fixture.run(&model, &order, Policy::Keep);
        let apart: Vec<Found> = order.iter().map(|sample| fixture.run(&model, &[*sample], Policy::Keep)).collect();
        let of_samples = Vec::<f32>::try_from(&fixture.expected["of_samples"]).unwrap();
        for (found, sample) in apart.iter().zip(&order) {
            let expected = f64::from(of_samples[*sample]) / order.len() as f64;
            assert!((found.loss / expected - 1.0).abs() < TOLERANCE, "{} sample {sample}", fixture.name);
        }
        checks::packed_is_as_alone(&fixture.name, &together, &apart);
    }
}

/// The gradient of everything that Florence-2 computes with is exactly nothing, and that of the transformer is what it was.
#[test]
fn insulated_gradients_end_at_the_transformer() {
    let fixture = Fixture::read(&folders()[0]);
    let [free, insulated] =
        [false, true].map(|insulate| fixture.run(&fixture.model(Policy::Keep, insulate), &fixture.all(), Policy::Keep));
    assert_eq!(free.loss, insulated.loss);
    assert_eq!(insulated.of_tower.flat().abs().max().double_value(&[]), 0.0);
    let mut counts = [0, 0];
    for id in fixture.params.trained_ids() {
        let name = &fixture.params.spec(id).name;
        let [free, insulated] = [&free, &insulated].map(|found| found.grads.view(id).shallow_clone());
        match fixture.config.is_of_prefix(name) {
            true => assert_eq!(insulated.abs().max().double_value(&[]), 0.0, "{name}"),
            false => assert_eq!(free, insulated, "{name}"),
        }
        counts[usize::from(fixture.config.is_of_prefix(name))] += 1;
    }
    assert!(counts.iter().all(|count| *count > 10), "{counts:?}");
}

/// Several draws are as many samples of one draw each, with an even share of the loss.
#[test]
fn draws_have_an_even_share_of_their_sample() {
    let fixture = Fixture::read(&folders()[0]);
    let whole = fixture.run(&fixture.model(Policy::Keep, false), &fixture.all(), Policy::Keep);
    let single = fixture.family(PolicyOptions::default()).model(&fixture.params, Policy::Keep);
    let num_draws = fixture.num_draws();
    let noise = fixture.noise(&fixture.all());
    let draw = |number: i64| {
        let pick = |x: &Tensor| checks::draw_of(x, fixture.samples.len(), num_draws, number);
        let own = Noise { noise: pick(&noise.noise), times: pick(&noise.times), delays: Vec::new() };
        fixture.run_tape(single.record_with(&fixture.batch(&fixture.all()), &own), &fixture.all(), Policy::Keep)
    };
    checks::draws_share_evenly(&fixture.name, &whole, num_draws, draw);
}

/// Noise and time belong to seed, sample and purpose; a sample that lost an item, and a filler, count for nothing.
#[test]
fn samples_have_their_own_noise_and_count_by_their_targets() {
    let fixture = Fixture::read(&folders()[0]);
    let settings = |seed, kind| FlowSettings { seed, kind, ..FlowSettings::default() };
    let loss = |settings: FlowSettings, samples: &[usize], change: &dyn Fn(&mut SampleRow)| {
        let model = fixture.family(PolicyOptions { noise_draws: 2, ..PolicyOptions::default() });
        let model = model.with_flow(settings).unwrap().build(&fixture.params, Policy::Keep);
        let batch = checks::changed(fixture.batch(samples), change);
        let found = fixture.run_tape(model.record(&batch), samples, Policy::Keep);
        checks::loss_and_norm(&found)
    };
    let mse = LossKind::Mse;
    checks::noise_is_of_seed_sample_and_purpose(&|seed, samples, change| loss(settings(seed, mse), samples, change));
    let [own, huber] = [mse, LossKind::Huber { delta: 0.1 }].map(|kind| loss(settings(3, kind), &[1], &|_| {}).0);
    assert_ne!(own, huber);
    let model = fixture.model(Policy::Keep, false);
    checks::filler_has_no_loss(&model, &fixture.params);
}

/// In bfloat16, losses come as near as weights that are rounded can.
#[test]
fn bfloat16_comes_near() {
    for folder in folders() {
        let mut fixture = Fixture::read(&folder);
        fixture.params = checks::rounded(PolicyFamily::new(fixture.config.clone()).specs(), &fixture.params);
        let model = fixture.model(Policy::Keep, false);
        let tape = model.record_with(&fixture.batch(&fixture.all()), &fixture.noise(&fixture.all()));
        let features = fixture.features(&fixture.all())[0].to_kind(Kind::BFloat16);
        let mut run = Execution::new(tape.tape, fixture.params.clone(), vec![(tape.features[0][0], features)]);
        run.forward().unwrap();
        let found = run.value(tape.loss.unwrap()).double_value(&[]) / fixture.expected["loss"].double_value(&[]);
        println!("{}: bfloat16 {:.1e}", fixture.name, (found - 1.0).abs());
        assert!((found - 1.0).abs() < 0.02, "{}", fixture.name);
    }
}
