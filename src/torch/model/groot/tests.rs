//! lerobot's numbers: losses, gradients of all parameters and sampled actions of fixtures that `tests/oracle/make_groot.py` makes.
//! `LOONGFORGE_POLICIES` has those of another folder read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use loongforge_core::data::IGNORE_INDEX;
use loongforge_core::message::{Grid, ItemMeta, SampleId, Tower};
use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::config::GrootConfig;
use super::family::{GrootFamily, GrootModel};
use super::flowing::Noise;
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::columns::Columns;
use crate::model::config::ModelConfig;
use crate::model::encoder::EncoderFamily;
use crate::model::family::groot::published;
use crate::model::foundation::{FoundationFamily, FoundationModel, FoundationTape};
use crate::model::keys::Keys;
use crate::model::objective::{FlowSettings, NoisePurpose};
use crate::model::policy::{PolicyOptions, RobotPolicy};
use crate::params::{GradBuffer, ParamSpec, ParamStore};
use crate::tape::{Execution, Policy};

/// The tolerance of losses and actions, as a share of the largest value of a tensor.
const TOLERANCE: f64 = 5e-6;
/// That of gradients: sums over all rows, in another order. The reference's own are off by up to 4e-5 in float32.
const OF_GRADIENTS: f64 = 5e-5;
/// The share of the largest gradient of all that a tensor's largest value is set to for its tolerance, if it is below: those of
/// biases of keys are sums that cancel.
const SMALL: f64 = 1e-3;

fn json(path: PathBuf) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn folders() -> Vec<PathBuf> {
    let committed = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/policies");
    let folder = std::env::var_os("LOONGFORGE_POLICIES").map_or_else(committed, PathBuf::from);
    let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> =
        entries.filter(|path| json(path.join("config.json"))["model_type"] == "Gr00tN1d7").collect();
    found.sort();
    assert!(!found.is_empty(), "{} has no fixture of this family", folder.display());
    found
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
    config: GrootConfig,
    tower: Arc<dyn EncoderFamily>,
    params: Rc<ParamStore>,
    of_tower: Rc<ParamStore>,
    samples: Vec<Value>,
    lens: Vec<usize>,
    grids: Vec<Grid>,
    dropped: Vec<Vec<usize>>,
    inputs: BTreeMap<String, Tensor>,
    expected: BTreeMap<String, Tensor>,
}

/// What a forward and backward come to.
struct Found {
    loss: f64,
    grads: GradBuffer,
    of_tower: GradBuffer,
}

fn store(specs: Vec<ParamSpec>, weights: &BTreeMap<String, Tensor>, kind: Kind) -> Rc<ParamStore> {
    let params = ParamStore::new(specs, kind, Device::Cpu);
    params.ids().for_each(|id| params.set(id, &weights[&params.spec(id).name]));
    Rc::new(params)
}

fn numbers(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as usize).collect()
}

fn index(samples: &[usize]) -> Tensor {
    Tensor::from_slice(&samples.iter().map(|sample| *sample as i64).collect::<Vec<_>>())
}

impl Fixture {
    fn read(folder: &Path) -> Fixture {
        Self::read_as(folder, Kind::Float)
    }

    fn read_as(folder: &Path, kind: Kind) -> Fixture {
        let config = json(folder.join("config.json"));
        let model = ModelConfig::from_hf(&config).unwrap();
        let weights = tensors(folder.join("model.safetensors"));
        let tower = model.towers.get(Tower::Vision).unwrap().clone();
        let summary = json(folder.join("fixture.json"));
        let [inputs, expected] = ["inputs", "expected"].map(|name| tensors(folder.join(format!("{name}.safetensors"))));
        let mut ours: Vec<String> = model.specs().into_iter().map(|spec| spec.name).collect();
        ours.sort();
        assert_eq!(ours, weights.keys().cloned().collect::<Vec<_>>());
        let grid = |sides: &Value| {
            let sides = numbers(sides);
            Grid { t: 1, h: sides[0] as u32, w: sides[1] as u32 }
        };
        Fixture {
            name: folder.file_name().unwrap().to_string_lossy().into_owned(),
            config: published(&Keys::new(&config)).unwrap().0,
            params: store(model.foundation.specs(), &weights, kind),
            of_tower: store(tower.specs(), &weights, Kind::Float),
            tower,
            samples: summary["samples"].as_array().unwrap().clone(),
            lens: numbers(&summary["lens"]),
            grids: summary["grids"].as_array().unwrap().iter().map(grid).collect(),
            dropped: summary["dropped"].as_array().unwrap().iter().map(numbers).collect(),
            inputs,
            expected,
        }
    }

    fn all(&self) -> Vec<usize> {
        (0..self.samples.len()).collect()
    }

    fn family(&self, noise_draws: u32) -> GrootFamily {
        GrootFamily::new(self.config.clone()).with_options(PolicyOptions { noise_draws, ..PolicyOptions::default() })
    }

    fn model(&self, policy: Policy) -> GrootModel {
        self.family(self.dropped.len() as u32).model(&self.params, policy)
    }

    /// The patches of the samples' pictures, and the size of each.
    fn pixels(&self, samples: &[usize]) -> (Tensor, Vec<Grid>) {
        let cameras = |sample: &usize| numbers(&self.samples[*sample]["cameras"]).into_iter();
        let all: Vec<(usize, usize)> =
            samples.iter().flat_map(|sample| cameras(sample).map(|camera| (*sample, camera))).collect();
        let pixels = all.iter().map(|(sample, camera)| self.inputs[&format!("pixels_{camera}")].get(*sample as i64));
        (Tensor::cat(&pixels.collect::<Vec<_>>(), 0), all.iter().map(|(_, camera)| self.grids[*camera]).collect())
    }

    fn of(&self, name: &str, samples: &[usize]) -> Tensor {
        self.inputs[name].index_select(0, &index(samples))
    }

    fn columns(&self, samples: &[usize]) -> (Columns, Vec<usize>) {
        let begin = |sample: usize| self.lens[..sample].iter().sum::<usize>() as i64;
        let tokens = |name: &str, axis: i64| {
            let own = samples.iter().map(|&at| self.inputs[name].narrow(axis, begin(at), self.lens[at] as i64));
            Tensor::cat(&own.collect::<Vec<_>>(), axis)
        };
        let mut ends = vec![0];
        samples.iter().for_each(|sample| ends.push(ends[ends.len() - 1] + self.lens[*sample]));
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

    fn batch(&self, samples: &[usize]) -> MicroBatch {
        let (columns, cu_seqlens) = self.columns(samples);
        let row = |sample: &usize| {
            let grids = self.pixels(&[*sample]).1;
            let item = |grid: Grid| ItemMeta {
                tower: Tower::Vision,
                grid,
                num_features: self.tower.num_features(grid) as u32,
            };
            SampleRow {
                id: SampleId(*sample as u64),
                num_tokens: self.lens[*sample],
                num_targets: 1,
                target: None,
                items: grids.into_iter().map(item).collect(),
                purpose: NoisePurpose::Training,
            }
        };
        let num_features = self.pixels(samples).1.into_iter().map(|grid| self.tower.num_features(grid) as i64).sum();
        MicroBatch {
            columns,
            cu_seqlens,
            samples: samples.iter().map(row).collect(),
            loss_scale: 1.0 / self.inputs["weights"].sum(Kind::Double).double_value(&[]),
            num_features: vec![num_features],
            feature_grads: true,
            row: None,
            shared_features: Vec::new(),
            past: None,
            evaluates: false,
        }
    }

    fn noise(&self, samples: &[usize]) -> Noise {
        let by_sample = |x: &Tensor| x.transpose(0, 1).index_select(0, &index(samples)).contiguous().flatten(0, 1);
        let kept =
            |sample: usize| self.dropped.iter().map(move |dropped| if dropped.contains(&sample) { 0f32 } else { 1.0 });
        let keeps: Vec<f32> = samples.iter().flat_map(|sample| kept(*sample)).collect();
        Noise {
            noise: by_sample(&self.inputs["noise"]),
            times: Vec::try_from(by_sample(&self.inputs["time"])).unwrap(),
            keeps: Some(Tensor::from_slice(&keeps)),
            dropout: [None, None],
        }
    }

    fn features(&self, samples: &[usize]) -> Vec<Tensor> {
        let encoder = self.tower.build(&self.of_tower, Policy::Keep);
        let (pixels, grids) = self.pixels(samples);
        let made = encoder.record(&grids);
        let mut run = Execution::forward_only(made.tape, self.of_tower.clone(), vec![(made.pixels, pixels)]);
        run.forward().unwrap();
        made.outputs.iter().map(|slot| run.value(*slot).shallow_clone()).collect()
    }

    fn run(&self, model: &GrootModel, samples: &[usize]) -> Found {
        self.run_tape(model.record_with(&self.batch(samples), &self.noise(samples)), samples)
    }

    fn run_tape(&self, tape: FoundationTape, samples: &[usize]) -> Found {
        let encoder = self.tower.build(&self.of_tower, Policy::Keep);
        let (pixels, grids) = self.pixels(samples);
        let made = encoder.record(&grids);
        let mut encoding = Execution::new(made.tape, self.of_tower.clone(), vec![(made.pixels, pixels)]);
        encoding.forward().unwrap();
        assert_eq!(tape.features[0].len(), made.outputs.len());
        let pairs: Vec<_> = tape.features[0].iter().copied().zip(made.outputs.iter().copied()).collect();
        let inputs = pairs.iter().map(|(slot, output)| (*slot, encoding.value(*output).shallow_clone())).collect();
        let mut run = Execution::new(tape.tape, self.params.clone(), inputs);
        run.forward().unwrap();
        let loss = run.value(tape.loss.unwrap()).double_value(&[]);
        run.seed(tape.loss.unwrap(), Tensor::from(1f64));
        let mut grads = self.params.new_grad();
        run.backward(Some(&mut grads)).unwrap();
        let mut of_tower = self.of_tower.new_grad();
        for (slot, output) in pairs {
            encoding.seed(output, run.input_grad(slot).expect("a gradient of each level"));
        }
        encoding.backward(Some(&mut of_tower)).unwrap();
        Found { loss, grads, of_tower }
    }

    /// Actions `[N, H, A]` of the fixture's noise.
    fn act(&self, samples: &[usize]) -> Tensor {
        let (columns, ends) = self.columns(samples);
        let (start, steps) = (self.of("start", samples), self.config.num_steps as usize);
        let acting = self.family(1).acting(&self.params);
        let found = acting.act(&columns, &ends, &self.features(samples), &start.flatten(0, 1), steps);
        found.view(start.size().as_slice())
    }

    /// The largest error of gradients, with its parameter.
    fn gradients(&self, found: &Found) -> (f64, String) {
        let stores = [(&self.params, &found.grads), (&self.of_tower, &found.of_tower)];
        let all =
            stores.into_iter().flat_map(|(params, grads)| params.trained_ids().map(move |id| (params, grads, id)));
        let mut left: Vec<&String> = self.expected.keys().filter(|name| name.starts_with("grad/")).collect();
        let most = left.iter().map(|name| self.expected[*name].abs().max().double_value(&[])).fold(0f64, f64::max);
        let mut largest = (0f64, String::new());
        for (params, grads, id) in all {
            let (spec, grad) = (params.spec(id), grads.view(id));
            let name = format!("grad/{}", spec.name);
            let expected = self.expected.get(&name);
            let expected = expected.unwrap_or_else(|| panic!("the reference has no gradient of {}", spec.name));
            left.retain(|other| **other != name);
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

#[test]
fn packed_samples_have_lerobots_losses_and_gradients() {
    for folder in folders() {
        let fixture = Fixture::read(&folder);
        let expected = fixture.expected["loss"].double_value(&[]);
        for policy in [Policy::Keep, Policy::Recompute] {
            let found = fixture.run(&fixture.model(policy), &fixture.all());
            let loss = (found.loss / expected - 1.0).abs();
            let (largest, name) = fixture.gradients(&found);
            println!("{}: loss {loss:.1e}, gradients {largest:.1e} ({name})", fixture.name);
            assert!(loss < TOLERANCE && largest < OF_GRADIENTS, "{}", fixture.name);
        }
    }
}

#[test]
fn actions_are_lerobots_with_the_context_computed_once() {
    for folder in folders() {
        let fixture = Fixture::read(&folder);
        let off = error(&fixture.act(&fixture.all()), &fixture.expected["sampled"]);
        println!("{}: actions {off:.1e}", fixture.name);
        assert!(off < TOLERANCE, "{}", fixture.name);
        let alone: Vec<Tensor> = fixture.all().into_iter().map(|sample| fixture.act(&[sample])).collect();
        assert!(error(&fixture.act(&fixture.all()), &Tensor::cat(&alone, 0)) < 1e-6, "{}", fixture.name);
    }
}

/// Noise, times, hidden states and masks belong to seed, sample and purpose; a sample that lost an item, and a filler, count for
/// nothing; evaluations drop nothing.
#[test]
fn samples_have_their_own_draws_and_count_by_their_targets() {
    let mut fixture = Fixture::read(&folders()[0]);
    (fixture.config.context.dropout, fixture.config.actions.dropout) = (0.2, 0.2);
    let loss = |seed: u64, samples: &[usize], change: &dyn Fn(&mut SampleRow)| {
        let settings = FlowSettings { seed, ..FlowSettings::default() };
        let model = fixture.family(2).with_flow(settings).unwrap().build(&fixture.params, Policy::Recompute);
        let mut batch = fixture.batch(samples);
        let mut rows = batch.samples.to_vec();
        rows.iter_mut().for_each(change);
        batch.samples = rows.into();
        let found = fixture.run_tape(model.record(&batch), samples);
        (found.loss, found.grads.flat().norm().double_value(&[]))
    };
    let own = loss(3, &[1], &|_| {});
    let together = loss(3, &[0, 1, 2], &|row| row.num_targets *= u32::from(row.id.0 == 1));
    assert!((own.0 / together.0 - 1.0).abs() < 1e-6, "{own:?} {together:?}");
    assert!((own.1 / together.1 - 1.0).abs() < 1e-5, "{own:?} {together:?}");
    assert_ne!(own.0, loss(4, &[1], &|_| {}).0);
    assert_ne!(own.0, loss(3, &[1], &|row| row.purpose = NoisePurpose::Evaluation(0)).0);
    assert_ne!(own.0, loss(3, &[1], &|row| row.id = SampleId(9)).0);
    assert_eq!(loss(3, &[1], &|row| row.num_targets = 0), (0.0, 0.0));
    let model = fixture.model(Policy::Keep);
    let tape = model.record(&MicroBatch::filler(model.columns(), Device::Cpu));
    let mut run = Execution::new(tape.tape, fixture.params.clone(), Vec::new());
    run.forward().unwrap();
    assert_eq!(run.value(tape.loss.unwrap()).double_value(&[]), 0.0);
    let held_out = model.draw(&MicroBatch { evaluates: true, ..fixture.batch(&[0, 1]) });
    assert!(held_out.keeps.is_none() && held_out.dropout.iter().all(Option::is_none));
    let trained = model.draw(&fixture.batch(&[0, 1]));
    assert!(trained.keeps.is_some() && trained.dropout.iter().all(Option::is_some));
}

/// Each kind of dropout changes what is learned, and without it nothing does.
#[test]
fn dropout_reaches_both_transformers() {
    let fixture = Fixture::read(&folders()[0]);
    let loss = |context: f64, actions: f64, keys: bool| {
        let mut config = fixture.config.clone();
        (config.context.dropout, config.actions.dropout) = (context, actions);
        let options = PolicyOptions::default();
        let family = GrootFamily::new(config).with_options(options);
        let model = family.model(&fixture.params, Policy::Keep);
        let mut noise = model.draw(&fixture.batch(&[0]));
        if !keys {
            noise.dropout = [None, None];
        }
        fixture.run_tape(model.record_with(&fixture.batch(&[0]), &noise), &[0]).loss
    };
    let without = loss(0.0, 0.0, true);
    assert_eq!(without, loss(0.5, 0.5, false));
    let (context, actions) = (loss(0.5, 0.0, true), loss(0.0, 0.5, true));
    assert!(actions != without && actions != context, "{without} {context} {actions}");
    assert_eq!(context != without, fixture.config.context.num_layers > 0);
}

/// A sample without any picture: layers that see pictures find nothing, as attention to no key does in the reference.
#[test]
fn a_sample_without_pictures_is_finite_and_alone() {
    let fixture = Fixture::read(&folders()[0]);
    let (columns, ends) = fixture.columns(&[0]);
    let image = fixture.config.input.placeholders[0];
    let text = columns.map(|x, _| match x.kind() {
        Kind::Int64 if x.size() == [ends[1] as i64] => x.where_self(&x.ne(image), &Tensor::from(3i64)),
        _ => x.shallow_clone(),
    });
    let acting = fixture.family(1).acting(&fixture.params);
    let noise = fixture.of("start", &[0]).flatten(0, 1);
    let found = acting.act(&text, &ends, &[], &noise, 2);
    assert!(found.isfinite().all().int64_value(&[]) == 1);
    assert_ne!(found, acting.act(&columns, &ends, &fixture.features(&[0]), &noise, 2));
}

/// In bfloat16, losses come as near as weights that are rounded can.
#[test]
fn bfloat16_comes_near() {
    for folder in folders() {
        let fixture = Fixture::read_as(&folder, Kind::BFloat16);
        let model = fixture.model(Policy::Keep);
        let tape = model.record_with(&fixture.batch(&fixture.all()), &fixture.noise(&fixture.all()));
        let features = fixture.features(&fixture.all()).into_iter().map(|x| x.to_kind(Kind::BFloat16));
        let inputs = tape.features[0].iter().copied().zip(features).collect();
        let mut run = Execution::new(tape.tape, fixture.params.clone(), inputs);
        run.forward().unwrap();
        let found = run.value(tape.loss.unwrap()).double_value(&[]) / fixture.expected["loss"].double_value(&[]);
        println!("{}: bfloat16 {:.1e}", fixture.name, (found - 1.0).abs());
        assert!((found - 1.0).abs() < 0.01, "{}", fixture.name);
    }
}
