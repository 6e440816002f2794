//! Diffusers' numbers: velocities, losses, gradients of all parameters, of fixtures that `tests/oracle/make_diffusion.py`
//! makes. `LOONGFORGE_DIT` has those of another folder read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use loongforge_core::message::{Grid, ItemMeta, SampleId, Sigma, Target, Tower};
use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::family::{DitFamily, DitModel, TransformerConfig};
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::columns::{Column, Columns};
use crate::model::foundation::{FoundationFamily, FoundationModel, Noised};
use crate::model::keys::Keys;
use crate::model::objective::{FlowSettings, LossKind, NoisePurpose, TimeWeight, noise as draw_noise};
use crate::model::sampler::velocity;
use crate::model::towers::with_values;
use crate::params::{GradBuffer, ParamStore};
use crate::tape::{Execution, Policy};

/// The tolerance of velocities and losses, as a share of the largest value of a tensor.
const TOLERANCE: f64 = 5e-6;
/// The tolerance of gradients. The largest differences are errors of the reference: `attn2.to_k` meets hundreds of equal rows of padding,
/// whose gradients it sums in float32.
const OF_GRADIENTS: f64 = 5e-5;

pub(crate) fn folders() -> Vec<PathBuf> {
    let committed = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dit");
    let folder = std::env::var_os("LOONGFORGE_DIT").map_or_else(committed, PathBuf::from);
    let mut found: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    assert!(!found.is_empty(), "{} is empty", folder.display());
    found
}

fn tensors(path: PathBuf) -> BTreeMap<String, Tensor> {
    Tensor::read_safetensors(path).unwrap().into_iter().collect()
}

/// The share of the largest gradient of all that a tensor's largest value is set to for its tolerance, if it is below: those
/// of biases of keys are sums that cancel but for the padding's key.
const SMALL: f64 = 0.02;

/// Returns the share of the largest expected value that the largest difference is.
pub(super) fn error(found: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(found.size(), expected.size());
    let largest = expected.abs().max().double_value(&[]);
    (found - expected).abs().max().double_value(&[]) / largest
}

/// A fixture with its model.
pub(crate) struct Fixture {
    pub name: String,
    pub family: DitFamily,
    pub params: Rc<ParamStore>,
    pub rows: Vec<SampleRow>,
    inputs: BTreeMap<String, Tensor>,
    pub expected: BTreeMap<String, Tensor>,
}

/// The results of a forward and backward.
pub(crate) struct Found {
    pub loss: f64,
    pub grads: GradBuffer,
    /// The gradients of features, by input.
    features: Vec<Option<Tensor>>,
}

impl Fixture {
    pub fn read(folder: &Path) -> Fixture {
        let config: Value =
            serde_json::from_str(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
        let transformer = TransformerConfig::read(&Keys::new(&config["transformer"]), "", 512).unwrap();
        let family = DitFamily::new(transformer);
        let params = Rc::new(ParamStore::new(family.specs(), Kind::Float, Device::Cpu));
        let weights = tensors(folder.join("model.safetensors"));
        assert_eq!(params.names().count(), weights.len(), "{:?}", params.names().collect::<Vec<_>>());
        params.ids().for_each(|id| params.set(id, &weights[&params.spec(id).name]));
        let [inputs, expected] = ["inputs", "expected"].map(|name| tensors(folder.join(format!("{name}.safetensors"))));
        let sigma = Vec::<f32>::try_from(&inputs["sigma"]).unwrap();
        let samples = config["samples"].as_array().unwrap().iter().zip(sigma);
        let rows = samples.zip(0..).map(|((sample, sigma), id)| row(id, sample, sigma)).collect();
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        Fixture { name, family, params, rows, inputs, expected }
    }

    pub fn model(&self, policy: Policy) -> DitModel {
        self.family.model(&self.params, policy)
    }

    /// Returns the features by input of these samples.
    pub fn features(&self, samples: &[usize]) -> Vec<Vec<Tensor>> {
        let of = |tower: Tower| {
            let parts: Vec<Tensor> = samples.iter().flat_map(|at| self.items(*at, tower)).collect();
            if parts.is_empty() { Vec::new() } else { vec![Tensor::cat(&parts, 0)] }
        };
        self.family.inputs().iter().map(|input| of(input.tower)).collect()
    }

    /// Returns the features of a sample's items of a tower, in their order.
    fn items(&self, sample: usize, tower: Tower) -> Vec<Tensor> {
        let part = |name: &str, count: &dyn Fn(&SampleRow) -> i64| {
            let start = self.rows[..sample].iter().map(count).sum();
            self.inputs.get(name).map(|x| x.narrow(0, start, count(&self.rows[sample])))
        };
        let of = |row: &SampleRow, tower: Tower, skip: usize| -> i64 {
            row.items
                .iter()
                .filter(|item| item.tower == tower)
                .skip(skip)
                .map(|item| i64::from(item.num_features))
                .sum()
        };
        match tower {
            Tower::Text => vec![part("text", &|row| of(row, tower, 0)).unwrap()],
            Tower::Vision => part("images", &|row| of(row, tower, 0)).into_iter().collect(),
            _ => {
                let target = part("latents", &|row| row.target.unwrap().grid.num_cells() as i64);
                target.into_iter().chain(part("conditions", &|row| of(row, tower, 1))).collect()
            }
        }
    }

    pub fn batch(&self, samples: &[usize]) -> MicroBatch {
        let rows: Vec<SampleRow> = samples.iter().map(|at| self.rows[*at].clone()).collect();
        let ends = rows.iter().scan(0, |end, row| {
            *end += row.num_tokens;
            Some(*end)
        });
        let num_features = self.features(samples).into_iter().map(|of| of.first().map_or(0, |x| x.size()[0]));
        MicroBatch {
            columns: Columns::new(&Vec::new().into(), Vec::new()),
            cu_seqlens: std::iter::once(0).chain(ends).collect(),
            samples: rows.into(),
            loss_scale: 1.0 / self.rows.len() as f64,
            num_features: num_features.collect(),
            feature_grads: true,
            constant_features: Default::default(),
            row: None,
            shared_features: Vec::new(),
            past: None,
            evaluates: false,
        }
    }

    /// Returns the rows of these samples' targets in `x`.
    fn targets(&self, samples: &[usize], x: &Tensor) -> Tensor {
        let tokens = |row: &SampleRow| row.target.unwrap().grid.num_cells() as i64;
        let part = |at: &usize| x.narrow(0, self.rows[..*at].iter().map(tokens).sum(), tokens(&self.rows[*at]));
        Tensor::cat(&samples.iter().map(part).collect::<Vec<_>>(), 0)
    }

    /// Returns the fixture's noise of a sample.
    pub fn noise(&self) -> impl Fn(&SampleRow, [i64; 2]) -> Tensor {
        |row: &SampleRow, _| self.targets(&[row.id.0 as usize], &self.inputs["noise"])
    }

    pub fn run(&self, model: &DitModel, samples: &[usize]) -> Found {
        let tape = model.recorder().record_with(&self.batch(samples), self.noise());
        let inputs = with_values(&tape.features, &self.features(samples));
        let mut run = Execution::new(tape.tape, self.params.clone(), inputs);
        run.forward().unwrap();
        let loss = tape.loss.unwrap();
        let value = run.value(loss).double_value(&[]);
        run.seed(loss, Tensor::from(1f64));
        let mut grads = self.params.new_grad();
        run.backward(Some(&mut grads)).unwrap();
        let features = tape.features.iter().map(|slots| slots.first().and_then(|slot| run.input_grad(*slot))).collect();
        Found { loss: value, grads, features }
    }

    /// Returns the noised targets of these samples.
    pub fn noised(&self, samples: &[usize]) -> Noised {
        let sigma: Vec<f64> = samples.iter().map(|at| self.rows[*at].target.unwrap().sigma.get()).collect();
        let [x, noise] = ["latents", "noise"].map(|name| self.targets(samples, &self.inputs[name]));
        let of_tokens = samples.iter().zip(&sigma).map(|(at, sigma)| {
            let tokens = self.rows[*at].target.unwrap().grid.num_cells() as i64;
            Tensor::full([tokens, 1], *sigma, (Kind::Float, Device::Cpu))
        });
        let sigmas = Tensor::cat(&of_tokens.collect::<Vec<_>>(), 0);
        Noised { latents: x * (1.0 - &sigmas) + noise * &sigmas, sigma, prompt: 0 }
    }

    pub fn velocity(&self, samples: &[usize]) -> Tensor {
        let (batch, features) = (self.batch(samples), self.features(samples));
        let model = self.model(Policy::Keep);
        velocity(&model, &self.params, &batch, &features, &self.noised(samples)).unwrap().unwrap()
    }
}

fn row(id: u64, sample: &Value, sigma: f32) -> SampleRow {
    let numbers = |value: &Value| -> Vec<u32> {
        value.as_array().unwrap().iter().map(|it| it.as_u64().unwrap() as u32).collect()
    };
    let grid = |value: &Value| {
        let side = numbers(value);
        Grid { t: side[0], h: side[1], w: side[2] }
    };
    let target = grid(&sample["grid"]);
    // A pixel is a patch: factors are 1.
    let latent = |grid: Grid| ItemMeta { tower: Tower::Vae, grid, num_features: grid.num_cells() as u32 };
    let conditions: Vec<ItemMeta> =
        sample["conditions"].as_array().unwrap().iter().map(|it| latent(grid(it))).collect();
    let flat = |tower: Tower, count: u32| ItemMeta { tower, grid: Grid { t: count, h: 1, w: 1 }, num_features: count };
    let pictures = numbers(&sample["images"]).into_iter().map(|count| flat(Tower::Vision, count));
    let text = flat(Tower::Text, sample["text"].as_u64().unwrap() as u32);
    let references = if sample["conditions"].as_array().unwrap().iter().all(|it| it[0] == 1 && target.t == 1) {
        conditions.iter().map(|item| item.num_features as usize).sum()
    } else {
        0
    };
    SampleRow {
        id: SampleId(id),
        num_tokens: target.num_cells() + references,
        num_targets: 1,
        target: Some(Target { grid: target, sigma: Sigma::new(sigma) }),
        items: std::iter::once(latent(target)).chain(conditions).chain([text]).chain(pictures).collect(),
        purpose: NoisePurpose::Training,
    }
}

/// Returns the largest error of gradients of parameters.
fn gradients(fixture: &Fixture, grads: &GradBuffer) -> (f64, String) {
    let mut largest = (0f64, String::new());
    let of_grads = fixture.expected.iter().filter(|(name, _)| name.starts_with("grad/"));
    let most = of_grads.map(|(_, grad)| grad.abs().max().double_value(&[])).fold(0f64, f64::max);
    for id in fixture.params.ids() {
        let name = &fixture.params.spec(id).name;
        let found = grads.view(id);
        let error = match fixture.expected.get(&format!("grad/{name}")) {
            Some(expected) => {
                let size = expected.abs().max().double_value(&[]);
                // The text of the last block is read by nobody: what its queries are made with has no gradient.
                let off = (found - expected.view(found.size().as_slice())).abs().max().double_value(&[]);
                off / size.max(SMALL * most)
            }
            None => found.abs().max().double_value(&[]),
        };
        // Not `max`, which drops a NaN.
        if error.is_nan() || error > largest.0 {
            largest = (error, name.clone());
        }
    }
    largest
}

#[test]
fn packed_samples_have_diffusers_velocities_losses_and_gradients() {
    for folder in folders() {
        let fixture = Fixture::read(&folder);
        let all: Vec<usize> = (0..fixture.rows.len()).collect();
        let velocity = error(&fixture.velocity(&all), &fixture.expected["velocity"]);
        let expected = fixture.expected["loss"].double_value(&[]);
        for policy in [Policy::Keep, Policy::Recompute] {
            let found = fixture.run(&fixture.model(policy), &all);
            let loss = (found.loss / expected - 1.0).abs();
            let (largest, name) = gradients(&fixture, &found.grads);
            println!("{}: velocity {velocity:.1e}, loss {loss:.1e}, gradients {largest:.1e} ({name})", fixture.name);
            assert!(velocity < TOLERANCE && loss < TOLERANCE && largest < OF_GRADIENTS, "{}", fixture.name);
        }
    }
}

/// Losses, and gradients of parameters and features, of samples alone and in any order.
#[test]
fn packed_samples_are_what_they_are_alone() {
    for folder in folders() {
        let fixture = Fixture::read(&folder);
        let model = fixture.model(Policy::Keep);
        let all: Vec<usize> = (0..fixture.rows.len()).rev().collect();
        let together = fixture.run(&model, &all);
        let apart: Vec<Found> = all.iter().map(|at| fixture.run(&model, &[*at])).collect();
        let loss: f64 = apart.iter().map(|found| found.loss).sum();
        assert!((together.loss / loss - 1.0).abs() < 1e-6, "{}", fixture.name);
        let sum = apart.iter().map(|found| found.grads.flat().shallow_clone()).reduce(|a, b| a + b).unwrap();
        assert!(error(together.grads.flat(), &sum) < 1e-5, "{}", fixture.name);
        for (input, found) in together.features.iter().enumerate() {
            let Some(found) = found else { continue };
            let parts: Vec<Tensor> =
                apart.iter().filter_map(|alone| alone.features[input].as_ref().map(Tensor::shallow_clone)).collect();
            assert!(error(found, &Tensor::cat(&parts, 0)) < 1e-5, "{} input {input}", fixture.name);
        }
        let parts: Vec<Tensor> = all.iter().map(|at| fixture.velocity(&[*at])).collect();
        assert!(error(&fixture.velocity(&all), &Tensor::cat(&parts, 0)) < 1e-5, "{}", fixture.name);
    }
}

/// A sample that is to be made comes without its target and with a second prompt.
#[test]
fn samples_without_targets_have_the_velocity_of_the_prompt_that_is_asked_for() {
    for folder in folders() {
        let fixture = Fixture::read(&folder);
        let all: Vec<usize> = (0..fixture.rows.len()).collect();
        let expected = fixture.velocity(&all);
        let model = fixture.model(Policy::Keep);
        let (mut batch, mut features) = (fixture.batch(&all), fixture.features(&all));
        let mut rows: Vec<SampleRow> = batch.samples.to_vec();
        let at = |tower: Tower| model.inputs().iter().position(|input| input.tower == tower).unwrap();
        let [text, latents] = [Tower::Text, Tower::Vae].map(at);
        let mut texts = Vec::new();
        for (number, row) in rows.iter_mut().enumerate() {
            row.items.remove(0);
            let prompt = row.items.iter().position(|item| item.tower == Tower::Text).unwrap();
            let other = ItemMeta { num_features: 2, ..row.items[prompt] };
            row.items.insert(prompt, other);
            texts.push(Tensor::ones([2, fixture.inputs["text"].size()[1]], (Kind::Float, Device::Cpu)));
            texts.extend(fixture.items(number, Tower::Text));
        }
        batch.samples = rows.into();
        features[text] = vec![Tensor::cat(&texts, 0)];
        let conditions: Vec<Tensor> =
            all.iter().flat_map(|at| fixture.items(*at, Tower::Vae).into_iter().skip(1)).collect();
        features[latents] = if conditions.is_empty() { Vec::new() } else { vec![Tensor::cat(&conditions, 0)] };
        batch.num_features = features.iter().map(|of| of.first().map_or(0, |x| x.size()[0])).collect();
        let told = |prompt| {
            let at = Noised { prompt, ..fixture.noised(&all) };
            velocity(&model, &fixture.params, &batch, &features, &at).unwrap().unwrap()
        };
        assert!(error(&told(1), &expected) < 1e-6, "{}", fixture.name);
        assert!(error(&told(0), &expected) > 1e-3, "{}", fixture.name);
    }
}

/// The loss of samples by their noise, weight and share; one that lost an item, and a filler, count for nothing.
#[test]
fn samples_count_by_their_level_and_their_share() {
    let fixture = Fixture::read(&folders().into_iter().find(|folder| folder.ends_with("wan2.2_ti2v")).unwrap());
    let (kind, weight) = (LossKind::Huber { delta: 0.5 }, TimeWeight::CosMap);
    let settings = FlowSettings { seed: 5, kind, weight, ..FlowSettings::default() };
    let model = fixture.family.with_flow(settings).unwrap().build(&fixture.params, Policy::Keep);
    let run = |batch: &MicroBatch, features: &[Vec<Tensor>]| {
        let tape = model.record(batch);
        let inputs = with_values(&tape.features, features);
        let mut run = Execution::new(tape.tape, fixture.params.clone(), inputs);
        run.forward().unwrap();
        run.seed(tape.loss.unwrap(), Tensor::from(1f64));
        let mut grads = fixture.params.new_grad();
        run.backward(Some(&mut grads)).unwrap();
        (run.value(tape.loss.unwrap()).double_value(&[]), grads.flat().norm().double_value(&[]))
    };
    let loss = |sample: usize, num_targets: u32, evaluates: bool| {
        let mut batch = fixture.batch(&[sample]);
        let row = SampleRow { num_targets, ..batch.samples[0].clone() };
        (batch.samples, batch.evaluates, batch.loss_scale) = (vec![row].into(), evaluates, 1.0);
        run(&batch, &fixture.features(&[sample]))
    };
    for (sample, row) in fixture.rows.iter().enumerate() {
        let (target, sigma) = (row.target.unwrap(), row.target.unwrap().sigma.get());
        let noise = draw_noise(5, row.id, row.purpose, &[target.grid.num_cells() as i64, 16]);
        let x = fixture.targets(&[sample], &fixture.inputs["latents"]);
        let noised: Tensor = &x * (1.0 - sigma) + &noise * sigma;
        let (batch, features) = (fixture.batch(&[sample]), fixture.features(&[sample]));
        let at = Noised { latents: noised, sigma: vec![sigma], prompt: 0 };
        let velocity = velocity(&*model, &fixture.params, &batch, &features, &at).unwrap().unwrap();
        // A given first frame is not in the loss.
        let given = if row.items.iter().filter(|item| item.tower == Tower::Vae).count() > 1 {
            target.grid.h * target.grid.w
        } else {
            0
        };
        let counted = |x: Tensor| x.narrow(0, i64::from(given), x.size()[0] - i64::from(given));
        let error = counted(velocity).huber_loss(&counted(noise - x), tch::Reduction::Mean, 0.5).double_value(&[]);
        let close = |found: f64, expected: f64| (found / expected - 1.0).abs() < 1e-5;
        assert!(close(loss(sample, 1, false).0, error * TimeWeight::CosMap.at(sigma)));
        assert!(close(loss(sample, 7, false).0, 7.0 * error * TimeWeight::CosMap.at(sigma)));
        assert!(close(loss(sample, 1, true).0, error), "an evaluation has no weights");
    }
    assert_eq!(loss(0, 0, false), (0.0, 0.0));
    assert_eq!(run(&MicroBatch::filler(model.columns(), Device::Cpu), &[]), (0.0, 0.0));
}

/// A mask divides a sample's weight by the brightness of its tokens; without one that is dark it changes no bit.
#[test]
fn masks_divide_the_loss_among_tokens() {
    let fixture = Fixture::read(&folders().into_iter().find(|folder| folder.ends_with("wan2.1_t2v")).unwrap());
    let family = fixture.family.with_flow(FlowSettings { masks: true, ..FlowSettings::default() }).unwrap();
    let columns: Rc<[Column]> = family.columns().into();
    let model = family.build(&fixture.params, Policy::Keep);
    let all: Vec<usize> = (0..fixture.rows.len()).collect();
    let num_tokens = fixture.rows.iter().map(|row| row.num_tokens as i64).sum::<i64>();
    // Of tapes of one sample each and of all.
    let loss = |weights: &Tensor, samples: &[usize]| {
        let begin: usize = fixture.rows[..samples[0]].iter().map(|row| row.num_tokens).sum();
        let mut batch = fixture.batch(samples);
        let own = weights.narrow(0, begin as i64, batch.num_tokens());
        batch.columns = Columns::new(&columns, vec![own]);
        let tape = model.record(&batch);
        let inputs = with_values(&tape.features, &fixture.features(samples));
        let mut run = Execution::forward_only(tape.tape, fixture.params.clone(), inputs);
        run.forward().unwrap();
        run.value(tape.loss.unwrap()).double_value(&[])
    };
    let ones = Tensor::ones([num_tokens], (Kind::Float, Device::Cpu));
    let plain = fixture.family.with_flow(FlowSettings::default()).unwrap().build(&fixture.params, Policy::Keep);
    let tape = plain.record(&fixture.batch(&all));
    let mut run = Execution::forward_only(
        tape.tape,
        fixture.params.clone(),
        with_values(&tape.features, &fixture.features(&all)),
    );
    run.forward().unwrap();
    assert_eq!(loss(&ones, &all), run.value(tape.loss.unwrap()).double_value(&[]));

    // With half of the tokens of the first sample in one mask and the others in the other, the two add up to the whole.
    let half = Tensor::arange(num_tokens, (Kind::Float, Device::Cpu)).remainder(2.0);
    let [odd, even] = [half.shallow_clone(), 1.0 - &half].map(|mask| loss(&mask, &[0]));
    let whole = loss(&ones, &[0]);
    let tokens = fixture.rows[0].num_tokens as f64;
    let [num_odd, num_even] = [(tokens / 2.0).floor(), (tokens / 2.0).ceil()];
    assert!(((odd * num_odd + even * num_even) / tokens / whole - 1.0).abs() < 1e-5);
    assert!((odd / even - 1.0).abs() > 1e-4, "the mask is not read");
    // Only the proportions of a mask matter.
    assert!((loss(&(&half * 0.25), &[0]) / odd - 1.0).abs() < 1e-6);
    let packed: f64 = all.iter().map(|sample| loss(&half, &[*sample])).sum();
    assert!((loss(&half, &all) / packed - 1.0).abs() < 1e-5, "samples read each other's masks");
}

/// Velocities in bfloat16 come as near as weights that are rounded can.
#[test]
fn bfloat16_comes_near() {
    for folder in folders() {
        let mut fixture = Fixture::read(&folder);
        let all: Vec<usize> = (0..fixture.rows.len()).collect();
        let rounded = Rc::new(ParamStore::new(fixture.family.specs(), Kind::BFloat16, Device::Cpu));
        rounded.ids().for_each(|id| rounded.set(id, &fixture.params.get(&rounded.spec(id).name)));
        fixture.params = rounded;
        let found = fixture.velocity(&all).to_kind(Kind::Float);
        let error = (&found - &fixture.expected["velocity"]).norm() / fixture.expected["velocity"].norm();
        println!("{}: {:.1e}", fixture.name, error.double_value(&[]));
        assert!(error.double_value(&[]) < 0.03, "{}", fixture.name);
        let features: Vec<Vec<Tensor>> = fixture.features(&all);
        let kinds =
            features.iter().map(|of| of.iter().map(|x| x.to_kind(Kind::BFloat16)).collect()).collect::<Vec<_>>();
        let tape = fixture.model(Policy::Keep).record(&fixture.batch(&all));
        let inputs = with_values(&tape.features, &kinds);
        let mut run = Execution::new(tape.tape, fixture.params.clone(), inputs);
        run.forward().unwrap();
        run.seed(tape.loss.unwrap(), Tensor::from(1f64));
        let mut grads = fixture.params.new_grad();
        run.backward(Some(&mut grads)).unwrap();
        assert!(grads.flat().isfinite().all().int64_value(&[]) == 1);
    }
}
