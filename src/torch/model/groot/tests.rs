//! lerobot's numbers: losses, gradients of all parameters and sampled actions of fixtures that `tests/oracle/make_groot.py` makes.
//! `LOONGFORGE_POLICIES` has those of another folder read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use loongforge_core::data::IGNORE_INDEX;
use loongforge_core::message::{Grid, Tower};
use serde_json::Value;
use tch::{Kind, Tensor};

use super::config::GrootConfig;
use super::flowing::Noise;
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::columns::Columns;
use crate::model::config::ModelConfig;
use crate::model::encoder::EncoderFamily;
use crate::model::family::groot::published;
use crate::model::foundation::{FoundationFamily, FoundationTape};
use crate::model::keys::Keys;
use crate::model::objective::FlowSettings;
use crate::model::policy::checks;
use crate::model::policy::fixtures::{self, Found, Parts, draws_of, error, index, json, store, tensors};
use crate::model::policy::{Denoising, Observed, PolicyFamily, PolicyModel, PolicyOptions, RobotPolicy};
use crate::params::ParamStore;
use crate::tape::{Execution, Policy};

/// The tolerance of losses and actions, as a share of the largest value of a tensor.
const TOLERANCE: f64 = 5e-6;
/// That of gradients: sums over all rows, in another order. The reference's own are off by up to 4e-5 in float32.
const OF_GRADIENTS: f64 = 5e-5;
fn folders() -> Vec<PathBuf> {
    fixtures::folders(&["groot"])
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

fn numbers(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as usize).collect()
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
            name: fixtures::name(folder),
            config: published(&Keys::new(&config)).unwrap().0,
            params: store(model.foundation.specs(), &weights, kind, str::to_owned),
            of_tower: store(tower.specs(), &weights, Kind::Float, str::to_owned),
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

    fn family(&self, noise_draws: u32) -> PolicyFamily<GrootConfig> {
        PolicyFamily::new(self.config.clone()).with_options(PolicyOptions { noise_draws, ..PolicyOptions::default() })
    }

    fn model(&self, policy: Policy) -> PolicyModel<GrootConfig> {
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
        let row =
            |sample: &usize| fixtures::row(*sample, self.lens[*sample], 1, self.pixels(&[*sample]).1, &*self.tower);
        let loss_scale = 1.0 / self.inputs["weights"].sum(Kind::Double).double_value(&[]);
        fixtures::batch(self.columns(samples), samples.iter().map(row).collect(), loss_scale)
    }

    fn noise(&self, samples: &[usize]) -> Noise {
        let kept =
            |sample: usize| self.dropped.iter().map(move |dropped| if dropped.contains(&sample) { 0f32 } else { 1.0 });
        let keeps: Vec<f32> = samples.iter().flat_map(|sample| kept(*sample)).collect();
        Noise {
            noise: draws_of(&self.inputs["noise"], samples),
            times: Vec::try_from(draws_of(&self.inputs["time"], samples)).unwrap(),
            keeps: Some(Tensor::from_slice(&keeps)),
            dropout: [None, None],
        }
    }

    fn features(&self, samples: &[usize]) -> Vec<Tensor> {
        self.parts().features(self.pixels(samples))
    }

    fn run(&self, model: &PolicyModel<GrootConfig>, samples: &[usize]) -> Found {
        self.run_tape(model.record_with(&self.batch(samples), &self.noise(samples)), samples)
    }

    fn run_tape(&self, tape: FoundationTape, samples: &[usize]) -> Found {
        self.parts().run(tape, self.pixels(samples), Policy::Keep)
    }

    fn parts(&self) -> Parts<'_> {
        let Fixture { params, tower, of_tower, .. } = self;
        Parts { params, tower: &**tower, of_tower, trains_tower: true }
    }

    /// Actions `[N, H, A]` of the fixture's noise.
    fn act(&self, samples: &[usize]) -> Tensor {
        let (columns, ends) = self.columns(samples);
        let (start, steps) = (self.of("start", samples), self.config.num_steps as usize);
        let acting = self.config.acting(&self.params);
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
            let found = fixture.run(&fixture.model(policy), &fixture.all());
            (found.loss, fixture.gradients(&found))
        });
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
        let batch = checks::changed(fixture.batch(samples), change);
        let found = fixture.run_tape(model.record(&batch), samples);
        checks::loss_and_norm(&found)
    };
    checks::noise_is_of_seed_sample_and_purpose(&loss);
    let own = loss(3, &[1], &|_| {});
    let together = loss(3, &[0, 1, 2], &|row| row.num_targets *= u32::from(row.id.0 == 1));
    assert!((own.1 / together.1 - 1.0).abs() < 1e-5, "{own:?} {together:?}");
    let model = fixture.model(Policy::Keep);
    checks::filler_has_no_loss(&model, &fixture.params);
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
        let family = PolicyFamily::new(config).with_options(options);
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
    let acting = fixture.config.acting(&fixture.params);
    let noise = fixture.of("start", &[0]).flatten(0, 1);
    let act = |columns: &Columns, features: &[Tensor]| {
        let from = Denoising { noise: &noise, num_steps: 2, given: None };
        acting.act(Observed { columns, cu_seqlens: &ends, features }, from).unwrap()
    };
    let found = act(&text, &[]);
    assert!(found.isfinite().all().int64_value(&[]) == 1);
    assert_ne!(found, act(&columns, &fixture.features(&[0])));
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
