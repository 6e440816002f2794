//! lerobot's numbers: losses, gradients of all parameters and sampled actions of fixtures that `tests/oracle/make_fastwam.py` makes.
//! `LOONGFORGE_POLICIES` has those of another folder read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use loongforge_core::data::IGNORE_INDEX;
use loongforge_core::message::SampleId;
use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::config::{LATENT_ID, TEXT_ID, WamConfig};
use super::noise::Noise;
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::columns::Columns;
use crate::model::foundation::{FoundationFamily, FoundationModel, FoundationTape};
use crate::model::objective::{FlowSettings, NoisePurpose};
use crate::model::policy::checks;
use crate::model::policy::fixtures::{self, error, index, json, store, tensors};
use crate::model::policy::{Architecture, Denoising, Observed, PolicyFamily, PolicyModel, RobotPolicy};
use crate::model::vae::LatentPatch;
use crate::params::{GradBuffer, ParamStore};
use crate::tape::{Execution, Policy};

/// The tolerance of losses and actions, as a share of the largest value of a tensor.
const TOLERANCE: f64 = 5e-6;
/// That of gradients: sums over all rows, in another order.
const OF_GRADIENTS: f64 = 3e-5;
fn folders() -> Vec<PathBuf> {
    fixtures::folders(&["fastwam"])
}

struct Fixture {
    name: String,
    config: WamConfig,
    params: Rc<ParamStore>,
    samples: Vec<Value>,
    inputs: BTreeMap<String, Tensor>,
    expected: BTreeMap<String, Tensor>,
}

/// What of the samples a batch has.
#[derive(Clone, Copy, PartialEq)]
enum Shows {
    All,
    /// Frames behind the end of an episode do not count.
    MaskedFrames,
    /// The first frame alone, as a robot sees it.
    FirstFrame,
}

impl Fixture {
    fn read(folder: &Path) -> Fixture {
        let config = crate::model::family::fastwam::config_of(&json(folder.join("config.json"))).unwrap();
        let weights = tensors(folder.join("model.safetensors"));
        let specs = config.specs();
        let others: Vec<&String> = weights.keys().filter(|name| specs.iter().all(|spec| spec.name != **name)).collect();
        assert!(others.is_empty(), "{others:?}");
        let [inputs, expected] = ["inputs", "expected"].map(|name| tensors(folder.join(format!("{name}.safetensors"))));
        Fixture {
            name: fixtures::name(folder),
            params: store(specs, &weights, Kind::Float, str::to_owned),
            samples: json(folder.join("fixture.json"))["samples"].as_array().unwrap().clone(),
            config,
            inputs,
            expected,
        }
    }

    fn all(&self) -> Vec<usize> {
        (0..self.samples.len()).collect()
    }

    fn family(&self) -> PolicyFamily<WamConfig> {
        PolicyFamily::new(self.config.clone())
    }

    fn model(&self, policy: Policy) -> PolicyModel<WamConfig> {
        self.family().model(&self.params, policy)
    }

    fn number(&self, sample: usize, key: &str) -> i64 {
        self.samples[sample][key].as_i64().unwrap()
    }

    fn num_frames(&self, shows: Shows) -> i64 {
        if shows == Shows::FirstFrame { 1 } else { self.config.num_frames }
    }

    /// Rows of places `[T, P]` of these samples' `name`.
    fn places(&self, name: &str, samples: &[usize], shows: Shows) -> Tensor {
        let [rows, columns] = self.config.video.patch;
        let of = |sample: &usize| {
            let frames = self.inputs[name].get(*sample as i64).permute([1, 2, 3, 0]);
            LatentPatch([1, rows, columns]).rows(&frames.narrow(0, 0, self.num_frames(shows)))
        };
        Tensor::cat(&samples.iter().map(of).collect::<Vec<_>>(), 0)
    }

    /// What the towers make of these samples.
    fn features(&self, samples: &[usize], shows: Shows) -> [Tensor; 2] {
        let text =
            |sample: &usize| self.inputs["text"].get(*sample as i64).narrow(0, 0, self.number(*sample, "prompt"));
        [Tensor::cat(&samples.iter().map(text).collect::<Vec<_>>(), 0), self.places("latents", samples, shows)]
    }

    /// Rows of these samples of a tensor `[N, …]`.
    fn of(&self, name: &str, samples: &[usize]) -> Tensor {
        self.inputs[name].index_select(0, &index(samples))
    }

    fn columns(&self, samples: &[usize], shows: Shows) -> (Columns, Vec<usize>) {
        let (mut ids, mut ends) = (Vec::new(), vec![0]);
        for sample in samples {
            let latents = self.num_frames(shows) * self.config.frame_rows();
            ids.extend(std::iter::repeat_n(LATENT_ID, latents as usize));
            ids.extend(std::iter::repeat_n(0, self.config.horizon as usize));
            ids.extend(std::iter::repeat_n(TEXT_ID, self.number(*sample, "prompt") as usize));
            ends.push(ids.len());
        }
        let tokens = Tensor::from_slice(&ids);
        let positions = Tensor::zeros([3, tokens.size()[0]], (Kind::Float, Device::Cpu));
        let WamConfig { horizon, action_dim, .. } = self.config;
        let weights = |sample: &usize| {
            let inside = self.number(*sample, "inside");
            let steps: Vec<f32> = (0..horizon).map(|step| f32::from(step < inside)).collect();
            Tensor::from_slice(&steps).unsqueeze(1).repeat([1, action_dim])
        };
        let of_frames = |sample: &usize| {
            // A frame of the latent is there where one of its four frames of pixels is.
            let inside = if shows == Shows::MaskedFrames { self.number(*sample, "frames") } else { i64::MAX };
            let counts: Vec<f32> = (1..self.config.num_frames).map(|frame| f32::from(4 * frame - 3 < inside)).collect();
            Tensor::from_slice(&counts)
        };
        let cat = |rows: Vec<Tensor>| Tensor::cat(&rows, 0);
        let targets = Tensor::full_like(&tokens, IGNORE_INDEX);
        let actions = self.of("actions", samples).flatten(0, 1);
        let mut all = vec![tokens, positions, targets, actions, cat(samples.iter().map(weights).collect())];
        if self.config.state_dim > 0 {
            all.push(self.of("state", samples));
        }
        all.push(cat(samples.iter().map(of_frames).collect()));
        (Columns::new(&self.config.columns().into(), all), ends)
    }

    fn batch(&self, samples: &[usize], shows: Shows) -> MicroBatch {
        let (columns, cu_seqlens) = self.columns(samples, shows);
        let row = |(sample, ends): (&usize, &[usize])| SampleRow {
            id: SampleId(*sample as u64),
            num_tokens: ends[1] - ends[0],
            num_targets: 1,
            target: None,
            items: Vec::new(),
            purpose: NoisePurpose::Training,
        };
        MicroBatch {
            columns,
            samples: samples.iter().zip(cu_seqlens.windows(2)).map(row).collect::<Vec<_>>().into(),
            cu_seqlens,
            loss_scale: 1.0 / self.samples.len() as f64,
            num_features: self.features(samples, shows).map(|features| features.size()[0]).to_vec(),
            feature_grads: true,
            row: None,
            shared_features: Vec::new(),
            past: None,
            evaluates: false,
        }
    }

    fn noise(&self, samples: &[usize]) -> Noise {
        let times = |name: &str| Vec::<f32>::try_from(self.of(name, samples)).unwrap();
        Noise {
            frames: self.places("video_noise", samples, Shows::All),
            actions: self.of("action_noise", samples).flatten(0, 1),
            frame_times: times("video_time"),
            action_times: times("action_time"),
        }
    }

    /// The loss and gradients of a tape of these samples.
    fn run(&self, tape: FoundationTape, features: &[Tensor]) -> (f64, GradBuffer) {
        let inputs = tape.features.iter().flatten().zip(features).map(|(slot, x)| (*slot, x.shallow_clone())).collect();
        let mut run = Execution::new(tape.tape, self.params.clone(), inputs);
        run.forward().unwrap();
        let loss = run.value(tape.loss.unwrap()).double_value(&[]);
        run.seed(tape.loss.unwrap(), Tensor::from(1f64));
        let mut grads = self.params.new_grad();
        run.backward(Some(&mut grads)).unwrap();
        (loss, grads)
    }

    fn loss(&self, samples: &[usize], shows: Shows, policy: Policy) -> (f64, GradBuffer) {
        let tape = self.model(policy).record_with(&self.batch(samples, shows), &self.noise(samples));
        self.run(tape, &self.features(samples, shows))
    }

    /// Actions `[N, H, A]` of the fixture's noise.
    fn act(&self, samples: &[usize], shows: Shows) -> Tensor {
        let acting = self.config.acting(&self.params);
        let (columns, ends) = self.columns(samples, shows);
        let (start, steps) = (self.of("start", samples), self.config.num_steps as usize);
        let found = acting.act(
            Observed { columns: &columns, cu_seqlens: &ends, features: &self.features(samples, shows) },
            Denoising { noise: &start.flatten(0, 1), num_steps: steps, given: None },
        );
        found.unwrap().view(start.size().as_slice())
    }

    /// The largest error of gradients, with its parameter.
    fn gradients(&self, found: &GradBuffer) -> (f64, String) {
        fixtures::gradients([(&*self.params, found)], &self.expected)
    }
}

#[test]
fn packed_samples_have_lerobots_losses_and_gradients() {
    for folder in folders() {
        let fixture = Fixture::read(&folder);
        let expected = fixture.expected["loss"].double_value(&[]);
        checks::matches_the_reference(&fixture.name, expected, [TOLERANCE, OF_GRADIENTS], |policy| {
            let (loss, grads) = fixture.loss(&fixture.all(), Shows::All, policy);
            (loss, fixture.gradients(&grads))
        });
        let (loss, _) = fixture.loss(&fixture.all(), Shows::MaskedFrames, Policy::Keep);
        let masked = fixture.expected["loss_of_frames"].double_value(&[]);
        assert!((loss / masked - 1.0).abs() < TOLERANCE && masked != expected, "{}: {loss}", fixture.name);
        for sample in fixture.all() {
            let (loss, _) = fixture.loss(&[sample], Shows::All, Policy::Keep);
            let alone = fixture.expected["of_samples"].double_value(&[sample as i64]);
            let off = (loss * fixture.samples.len() as f64 / alone - 1.0).abs();
            assert!(off < TOLERANCE, "{}, sample {sample}: {off:.1e}", fixture.name);
        }
    }
}

/// Frames behind the first, where there are some, change nothing of actions.
#[test]
fn actions_are_lerobots_of_one_noise() {
    for folder in folders() {
        let fixture = Fixture::read(&folder);
        let expected = &fixture.expected["sampled"];
        let found = fixture.act(&fixture.all(), Shows::FirstFrame);
        let off = error(&found, expected);
        println!("{}: actions {off:.1e}", fixture.name);
        assert!(off < TOLERANCE, "{}", fixture.name);
        let alone: Vec<Tensor> = fixture.all().into_iter().map(|at| fixture.act(&[at], Shows::FirstFrame)).collect();
        assert!(error(&Tensor::cat(&alone, 0), &found) < TOLERANCE, "{}", fixture.name);
        assert!(error(&fixture.act(&fixture.all(), Shows::All), &found) < TOLERANCE, "{}", fixture.name);
    }
}

/// The loss of actions has no gradient of what only frames behind the first go through, and that of frames none of actions' stream.
#[test]
fn neither_loss_reaches_what_only_the_other_goes_through() {
    let mut fixture = Fixture::read(&folders()[0]);
    let norm = |fixture: &Fixture, grads: &GradBuffer, of: &str| -> f64 {
        let ids = fixture.params.trained_ids().filter(|id| fixture.params.spec(*id).name.contains(of));
        ids.map(|id| grads.view(id).norm().double_value(&[])).sum()
    };
    let last = fixture.config.num_layers() - 1;
    let only_frames = format!("layers.{last}.blocks.video.ffn");
    fixture.config.video_flow.weight = 0.0;
    let (_, grads) = fixture.loss(&fixture.all(), Shows::All, Policy::Keep);
    assert_eq!(norm(&fixture, &grads, &only_frames), 0.0);
    assert!(norm(&fixture, &grads, "layers.0.blocks.video.ffn") > 0.0, "actions see the first frame");
    fixture.config.video_flow.weight = 1.0;
    fixture.config.action_flow.weight = 0.0;
    let (_, grads) = fixture.loss(&fixture.all(), Shows::All, Policy::Keep);
    assert!(norm(&fixture, &grads, &only_frames) > 0.0);
    assert_eq!(norm(&fixture, &grads, ".blocks.action.") + norm(&fixture, &grads, "mixtures.action."), 0.0);
    fixture.config.freezes_video = true;
    let frozen = fixture.family().specs().into_iter().filter(|spec| spec.role == crate::params::Role::Frozen);
    assert!(frozen.map(|spec| spec.name).all(|name| fixture.config.is_of_video(&name)));
}

/// Noise belongs to seed, sample and purpose: what else is in a pack changes nothing.
#[test]
fn noise_belongs_to_seed_sample_and_purpose() {
    let fixture = Fixture::read(&folders()[0]);
    let loss = |seed: u64, samples: &[usize], change: &dyn Fn(&mut SampleRow)| {
        let family = fixture.family().with_flow(FlowSettings { seed, ..FlowSettings::default() }).unwrap();
        let model = family.build(&fixture.params, Policy::Keep);
        let batch = checks::changed(fixture.batch(samples, Shows::All), change);
        let (loss, grads) = fixture.run(model.record(&batch), &fixture.features(samples, Shows::All));
        (loss, grads.flat().norm().double_value(&[]))
    };
    checks::noise_is_of_seed_sample_and_purpose(&loss);
    let model = fixture.model(Policy::Keep);
    let tape = model.record(&MicroBatch::filler(model.columns(), Device::Cpu));
    assert_eq!(fixture.run(tape, &[]).0, 0.0);
}

/// Times of actions have waves of another number than those of frames, where the config says so.
#[test]
fn each_stream_has_waves_of_its_own() {
    let mut fixture = Fixture::read(&folders()[0]);
    fixture.config.action.freq_dim += 4;
    let params = Rc::new(ParamStore::new(fixture.family().specs(), Kind::Float, Device::Cpu));
    for id in params.ids() {
        let spec = params.spec(id);
        let own = fixture.params.get(&spec.name);
        let zeros = Tensor::zeros(spec.shape.as_slice(), (Kind::Float, Device::Cpu));
        params.set(id, if own.size() == spec.shape { &own } else { &zeros });
    }
    fixture.params = params;
    let (loss, _) = fixture.loss(&fixture.all(), Shows::All, Policy::Keep);
    let actions = fixture.act(&fixture.all(), Shows::FirstFrame);
    assert!(loss.is_finite() && actions.isfinite().all().int64_value(&[]) == 1);
}

/// In bfloat16, losses come as near as weights that are rounded can.
#[test]
fn bfloat16_comes_near() {
    for folder in folders() {
        let mut fixture = Fixture::read(&folder);
        fixture.params = checks::rounded(fixture.family().specs(), &fixture.params);
        let (all, shows) = (fixture.all(), Shows::All);
        let tape = fixture.model(Policy::Keep).record_with(&fixture.batch(&all, shows), &fixture.noise(&all));
        let features = fixture.features(&all, shows).map(|x| x.to_kind(Kind::BFloat16));
        let (loss, _) = fixture.run(tape, &features);
        let off = (loss / fixture.expected["loss"].double_value(&[]) - 1.0).abs();
        println!("{}: bfloat16 {off:.1e}", fixture.name);
        assert!(off < 0.02, "{}", fixture.name);
    }
}
