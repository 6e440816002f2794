//! lerobot's numbers: losses, gradients of all parameters and sampled actions of fixtures that `tests/oracle/make_xvla.py` makes.
//! `LOONGFORGE_POLICIES` has those of another folder read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use loongforge_core::data::IGNORE_INDEX;
use loongforge_core::message::{Grid, ItemMeta, SampleId, Tower};
use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::config::XvlaConfig;
use super::family::{XvlaFamily, XvlaModel};
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::columns::Columns;
use crate::model::config::ModelConfig;
use crate::model::encoder::EncoderFamily;
use crate::model::foundation::{FoundationFamily, FoundationModel, FoundationTape};
use crate::model::objective::{FlowSettings, LossKind, NoisePurpose};
use crate::model::policy::{Noise, PolicyOptions, RobotPolicy};
use crate::params::{GradBuffer, ParamSpec, ParamStore};
use crate::tape::{Execution, Policy};

/// The tolerance of losses and actions, as a share of the largest value of a tensor.
const TOLERANCE: f64 = 5e-6;
/// That of gradients: sums over all rows, in another order. Those of DaViT's first stages that the reference has in float32 are up to
/// 9e-5 off what it has in float64.
const OF_GRADIENTS: f64 = 1e-4;
/// The share of the largest gradient of all that a tensor's largest value is set to for its tolerance, if it is below: those of
/// biases of keys are sums that cancel.
const SMALL: f64 = 1e-3;

fn folders() -> Vec<PathBuf> {
    let committed = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/policies");
    let folder = std::env::var_os("LOONGFORGE_POLICIES").map_or_else(committed, PathBuf::from);
    let mut found: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("xvla")));
    found.sort();
    assert!(!found.is_empty(), "{} has no fixture", folder.display());
    found
}

fn json(path: PathBuf) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn tensors(path: PathBuf) -> BTreeMap<String, Tensor> {
    Tensor::read_safetensors(path).unwrap().into_iter().collect()
}

/// The share of the largest expected value that the largest difference is.
fn error(found: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(found.size(), expected.size());
    (found - expected).abs().max().double_value(&[]) / expected.abs().max().double_value(&[])
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

/// What a forward and backward come to.
struct Found {
    loss: f64,
    grads: GradBuffer,
    of_tower: GradBuffer,
}

fn store(specs: Vec<ParamSpec>, weights: &BTreeMap<String, Tensor>) -> Rc<ParamStore> {
    let params = ParamStore::new(specs, Kind::Float, Device::Cpu);
    for id in params.ids() {
        let found = params.spec(id).pieces.iter().find_map(|piece| weights.get(&piece.name));
        params.set(id, found.unwrap_or_else(|| panic!("no {}", params.spec(id).name)));
    }
    Rc::new(params)
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
            name: folder.file_name().unwrap().to_string_lossy().into_owned(),
            params: store(model.foundation.specs(), &weights),
            of_tower: store(tower.specs(), &weights),
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

    fn family(&self, options: PolicyOptions) -> XvlaFamily {
        XvlaFamily::new(self.config.clone()).with_options(options)
    }

    fn num_draws(&self) -> i64 {
        self.inputs["noise"].size()[0]
    }

    fn model(&self, policy: Policy, insulate: bool) -> XvlaModel {
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
        let index: Vec<i64> = samples.iter().map(|sample| *sample as i64).collect();
        self.inputs[name].index_select(0, &Tensor::from_slice(&index))
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
            let num_features = self.tower.num_features(grids[0]) as u32;
            assert_eq!(i64::from(num_features), self.config.view_features);
            SampleRow {
                id: SampleId(*sample as u64),
                num_tokens: self.ids(*sample).len(),
                num_targets: self.num_targets() as u32,
                target: None,
                items: grids.iter().map(|grid| ItemMeta { tower: Tower::Vision, grid: *grid, num_features }).collect(),
                purpose: NoisePurpose::Training,
            }
        };
        samples.iter().map(row).collect()
    }

    fn batch(&self, samples: &[usize]) -> MicroBatch {
        let (columns, cu_seqlens) = self.columns(samples);
        let num_views: i64 = samples.iter().map(|sample| self.number(*sample, "views")).sum();
        MicroBatch {
            columns,
            cu_seqlens,
            samples: self.rows(samples).into(),
            loss_scale: 1.0 / (self.samples.len() as i64 * self.num_targets()) as f64,
            num_features: vec![num_views * self.config.view_features],
            feature_grads: true,
            row: None,
            shared_features: Vec::new(),
            past: None,
            evaluates: false,
        }
    }

    fn noise(&self, samples: &[usize]) -> Noise {
        let index: Vec<i64> = samples.iter().map(|sample| *sample as i64).collect();
        let index = Tensor::from_slice(&index);
        let by_sample = |name: &str| self.inputs[name].transpose(0, 1).index_select(0, &index).contiguous();
        Noise { noise: by_sample("noise").flatten(0, 2), times: by_sample("time").flatten(0, 1), delays: Vec::new() }
    }

    fn run(&self, model: &XvlaModel, samples: &[usize], policy: Policy) -> Found {
        self.run_tape(model.record_with(&self.batch(samples), &self.noise(samples)), samples, policy)
    }

    fn run_tape(&self, tape: FoundationTape, samples: &[usize], policy: Policy) -> Found {
        let encoder = self.tower.build(&self.of_tower, policy);
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

    fn features(&self, samples: &[usize]) -> Tensor {
        let encoder = self.tower.build(&self.of_tower, Policy::Keep);
        let (pixels, grids) = self.pixels(samples);
        let made = encoder.record(&grids);
        let mut run = Execution::forward_only(made.tape, self.of_tower.clone(), vec![(made.pixels, pixels)]);
        run.forward().unwrap();
        run.value(made.outputs[0]).shallow_clone()
    }

    /// Actions `[N, H, A]` of the fixture's noise.
    fn act(&self, samples: &[usize]) -> Tensor {
        let acting = XvlaFamily::new(self.config.clone()).acting(&self.params);
        let (columns, ends) = self.columns(samples);
        let (start, steps) = (self.of("start", samples), self.config.num_steps as usize);
        let found = acting.act(&columns, &ends, &[self.features(samples)], &start.flatten(0, 1), steps);
        found.view(start.size().as_slice())
    }

    /// The largest error of gradients, with its parameter.
    fn gradients(&self, found: &Found) -> (f64, String) {
        let of_grads = self.expected.iter().filter(|(name, _)| name.starts_with("grad/"));
        let most = of_grads.map(|(_, grad)| grad.abs().max().double_value(&[])).fold(0f64, f64::max);
        let mut largest = (0f64, String::new());
        let mut left: Vec<&String> = self.expected.keys().filter(|name| name.starts_with("grad/")).collect();
        for (params, grads) in [(&self.params, &found.grads), (&self.of_tower, &found.of_tower)] {
            for id in params.trained_ids() {
                let (spec, grad) = (params.spec(id), grads.view(id));
                let mut names = spec.pieces.iter().map(|piece| format!("grad/{}", piece.name));
                let name = names.find(|name| self.expected.contains_key(name));
                let name = name.unwrap_or_else(|| panic!("the reference has no gradient of {}", spec.name));
                left.retain(|other| **other != name);
                let expected = &self.expected[&name];
                let off = (grad.view(expected.size().as_slice()) - expected).abs().max().double_value(&[]);
                let off = off / expected.abs().max().double_value(&[]).max(SMALL * most);
                // Not `max`, which drops a NaN.
                if off.is_nan() || off > largest.0 {
                    largest = (off, spec.name.clone());
                }
            }
        }
        assert!(left.is_empty(), "{left:?}");
        largest
    }
}

#[test]
fn packed_samples_have_lerobots_losses_and_gradients() {
    for folder in folders() {
        let fixture = Fixture::read(&folder);
        let expected = fixture.expected["loss"].double_value(&[]);
        for policy in [Policy::Keep, Policy::Recompute] {
            let found = fixture.run(&fixture.model(policy, false), &fixture.all(), policy);
            let loss = (found.loss / expected - 1.0).abs();
            let (largest, name) = fixture.gradients(&found);
            println!("{}: loss {loss:.1e}, gradients {largest:.1e} ({name})", fixture.name);
            assert!(loss < TOLERANCE && largest < OF_GRADIENTS, "{}", fixture.name);
        }
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
        let loss: f64 = apart.iter().map(|found| found.loss).sum();
        assert!((together.loss / loss - 1.0).abs() < 1e-6, "{}", fixture.name);
        let of_samples = Vec::<f32>::try_from(&fixture.expected["of_samples"]).unwrap();
        for (found, sample) in apart.iter().zip(&order) {
            let expected = f64::from(of_samples[*sample]) / order.len() as f64;
            assert!((found.loss / expected - 1.0).abs() < TOLERANCE, "{} sample {sample}", fixture.name);
        }
        for of in
            [|found: &Found| found.grads.flat().shallow_clone(), |found: &Found| found.of_tower.flat().shallow_clone()]
        {
            let sum = apart.iter().map(of).reduce(|a, b| a + b).unwrap();
            assert!(error(&of(&together), &sum) < 1e-5, "{}", fixture.name);
        }
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
    let family = fixture.family(PolicyOptions::default());
    let mut counts = [0, 0];
    for id in fixture.params.trained_ids() {
        let name = &fixture.params.spec(id).name;
        let [free, insulated] = [&free, &insulated].map(|found| found.grads.view(id).shallow_clone());
        match family.is_of_prefix(name) {
            true => assert_eq!(insulated.abs().max().double_value(&[]), 0.0, "{name}"),
            false => assert_eq!(free, insulated, "{name}"),
        }
        counts[usize::from(family.is_of_prefix(name))] += 1;
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
        let pick = |x: &Tensor| {
            let by_draw = x.unflatten(0, [fixture.samples.len() as i64, num_draws, -1]);
            by_draw.select(1, number).flatten(0, 1).contiguous()
        };
        let own = Noise { noise: pick(&noise.noise), times: pick(&noise.times), delays: Vec::new() };
        fixture.run_tape(single.record_with(&fixture.batch(&fixture.all()), &own), &fixture.all(), Policy::Keep)
    };
    let draws: Vec<Found> = (0..num_draws).map(draw).collect();
    let mean = draws.iter().map(|found| found.loss).sum::<f64>() / num_draws as f64;
    assert!((whole.loss / mean - 1.0).abs() < 1e-6);
    let sum = draws.iter().map(|found| found.grads.flat().shallow_clone()).reduce(|a, b| a + b).unwrap();
    assert!(error(whole.grads.flat(), &(sum / num_draws as f64)) < 1e-5);
}

/// Noise and time belong to seed, sample and purpose; a sample that lost an item, and a filler, count for nothing.
#[test]
fn samples_have_their_own_noise_and_count_by_their_targets() {
    let fixture = Fixture::read(&folders()[0]);
    let settings = |seed, kind| FlowSettings { seed, kind, ..FlowSettings::default() };
    let loss = |settings: FlowSettings, samples: &[usize], change: &dyn Fn(&mut SampleRow)| {
        let model = fixture.family(PolicyOptions { noise_draws: 2, ..PolicyOptions::default() });
        let model = model.with_flow(settings).unwrap().build(&fixture.params, Policy::Keep);
        let mut batch = fixture.batch(samples);
        let mut rows = batch.samples.to_vec();
        rows.iter_mut().for_each(change);
        batch.samples = rows.into();
        let found = fixture.run_tape(model.record(&batch), samples, Policy::Keep);
        (found.loss, found.grads.flat().norm().double_value(&[]))
    };
    let mse = LossKind::Mse;
    let own = loss(settings(3, mse), &[1], &|_| {});
    let together = loss(settings(3, mse), &[0, 1, 2], &|row| row.num_targets *= u32::from(row.id.0 == 1));
    assert!((own.0 / together.0 - 1.0).abs() < 1e-6, "{own:?} {together:?}");
    assert_ne!(own.0, loss(settings(4, mse), &[1], &|_| {}).0);
    assert_ne!(own.0, loss(settings(3, LossKind::Huber { delta: 0.1 }), &[1], &|_| {}).0);
    assert_ne!(own.0, loss(settings(3, mse), &[1], &|row| row.purpose = NoisePurpose::Evaluation(0)).0);
    assert_ne!(own.0, loss(settings(3, mse), &[1], &|row| row.id = SampleId(9)).0);
    assert_eq!(loss(settings(3, mse), &[1], &|row| row.num_targets = 0), (0.0, 0.0));
    let model = fixture.model(Policy::Keep, false);
    let tape = model.record(&MicroBatch::filler(model.columns(), Device::Cpu));
    let mut run = Execution::new(tape.tape, fixture.params.clone(), Vec::new());
    run.forward().unwrap();
    assert_eq!(run.value(tape.loss.unwrap()).double_value(&[]), 0.0);
}

/// In bfloat16, losses come as near as weights that are rounded can.
#[test]
fn bfloat16_comes_near() {
    for folder in folders() {
        let mut fixture = Fixture::read(&folder);
        let rounded =
            Rc::new(ParamStore::new(XvlaFamily::new(fixture.config.clone()).specs(), Kind::BFloat16, Device::Cpu));
        rounded.ids().for_each(|id| rounded.set(id, &fixture.params.get(&rounded.spec(id).name)));
        fixture.params = rounded;
        let model = fixture.model(Policy::Keep, false);
        let tape = model.record_with(&fixture.batch(&fixture.all()), &fixture.noise(&fixture.all()));
        let features = fixture.features(&fixture.all()).to_kind(Kind::BFloat16);
        let mut run = Execution::new(tape.tape, fixture.params.clone(), vec![(tape.features[0][0], features)]);
        run.forward().unwrap();
        let found = run.value(tape.loss.unwrap()).double_value(&[]) / fixture.expected["loss"].double_value(&[]);
        println!("{}: bfloat16 {:.1e}", fixture.name, (found - 1.0).abs());
        assert!((found - 1.0).abs() < 0.02, "{}", fixture.name);
    }
}
