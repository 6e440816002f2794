//! Fixtures of FastWAM, which `tests/oracle/make_fastwam.py` writes: their samples here and in lerobot.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use loongforge_core::data::IGNORE_INDEX;
use loongforge_core::message::SampleId;
use serde::Deserialize;
use tch::{Device, Kind, Tensor};

use super::config::{LATENT_ID, TEXT_ID, WamConfig};
use super::noise::Noise;
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::columns::Columns;
use crate::model::family::fastwam::config_of;
use crate::model::fixture::{ALONE, Comparisons, FixtureError, FixtureFolder, ReferenceFixture, grads_of, rows_of};
use crate::model::foundation::FoundationTape;
use crate::model::objective::NoisePurpose;
use crate::model::policy::{Architecture, Denoising, Observed, PolicyFamily, PolicyModel, RobotPolicy};
use crate::model::vae::LatentPatch;
use crate::params::{GradBuffer, ParamStore};
use crate::tape::{Execution, Policy};

/// The tolerance of losses and actions, as a share of the largest value of a tensor.
const TOLERANCE: f64 = 5e-6;
/// The tolerance of gradients, which are sums over all rows in another order.
const OF_GRADIENTS: f64 = 3e-5;

/// A policy and its samples.
pub(in crate::model) struct Fixture {
    pub config: WamConfig,
    pub params: Rc<ParamStore>,
    pub(super) samples: Vec<Sample>,
    pub(super) inputs: BTreeMap<String, Tensor>,
    expected: BTreeMap<String, Tensor>,
}

#[derive(Deserialize)]
struct Summary {
    samples: Vec<Sample>,
}

/// Tokens of a prompt, actions within the episode, and frames within it.
#[derive(Deserialize)]
pub(super) struct Sample {
    prompt: i64,
    pub inside: i64,
    frames: i64,
}

/// The parts of the samples that a batch has.
#[derive(Clone, Copy, PartialEq)]
pub(in crate::model) enum Shows {
    All,
    /// Frames behind the end of an episode do not count.
    MaskedFrames,
    /// The first frame alone, as a robot sees it.
    FirstFrame,
}

impl Fixture {
    /// Reads a fixture's folder; parameters have this `kind`.
    ///
    /// # Errors
    /// A file is missing or damaged, or does not fit the config.
    pub fn read(path: &Path, kind: Kind) -> Result<Fixture, FixtureError> {
        let mut inputs = vec!["text", "latents", "actions", "video_noise", "action_noise", "video_time", "action_time"];
        inputs.push("start");
        let expected = ["loss", "loss_of_frames", "of_samples", "sampled"];
        let folder = FixtureFolder::read(path, "make_fastwam.py", &inputs, &expected)?;
        let config = config_of(&folder.config).map_err(|source| folder.of_config(source))?;
        let own = |name: &str| name.to_owned();
        folder.expect_all(&config.specs(), &[], own)?;
        if config.state_dim > 0 {
            folder.expect_input("state")?;
        }
        let Summary { samples } = folder.summary()?;
        folder.expect_samples(samples.len(), 0, ["text", "latents", "actions", "start"])?;
        Ok(Fixture {
            params: folder.store(config.specs(), kind, own)?,
            samples,
            config,
            inputs: folder.inputs,
            expected: folder.expected,
        })
    }

    /// Returns the numbers of all samples.
    pub fn all(&self) -> Vec<usize> {
        (0..self.samples.len()).collect()
    }

    /// Returns the policy's family with default options.
    pub fn family(&self) -> PolicyFamily<WamConfig> {
        PolicyFamily::new(self.config.clone())
    }

    /// Builds the policy with the fixture's weights.
    pub fn model(&self, policy: Policy) -> PolicyModel<WamConfig> {
        self.family().model(&self.params, policy)
    }

    fn num_frames(&self, shows: Shows) -> i64 {
        if shows == Shows::FirstFrame { 1 } else { self.config.num_frames }
    }

    /// Returns the rows of places `[T, P]` of these samples' `name`.
    fn places(&self, name: &str, samples: &[usize], shows: Shows) -> Tensor {
        let [rows, columns] = self.config.video.patch;
        let of = |sample: &usize| {
            let frames = self.inputs[name].get(*sample as i64).permute([1, 2, 3, 0]);
            LatentPatch([1, rows, columns]).rows(&frames.narrow(0, 0, self.num_frames(shows)))
        };
        Tensor::cat(&samples.iter().map(of).collect::<Vec<_>>(), 0)
    }

    /// Returns the features of these samples that the towers would give, in the type of the parameters: of texts `[tokens, width]`, and
    /// of frames `[places, numbers of a place]`.
    pub fn features(&self, samples: &[usize], shows: Shows) -> [Tensor; 2] {
        let prompt =
            |sample: &usize| self.inputs["text"].get(*sample as i64).narrow(0, 0, self.samples[*sample].prompt);
        let text = Tensor::cat(&samples.iter().map(prompt).collect::<Vec<_>>(), 0);
        [text, self.places("latents", samples, shows)].map(|x| x.to_kind(self.params.flat().kind()))
    }

    /// Returns the rows of these samples of a tensor `[N, …]`.
    fn of(&self, name: &str, samples: &[usize]) -> Tensor {
        rows_of(&self.inputs[name], samples)
    }

    fn columns(&self, samples: &[usize], shows: Shows) -> (Columns, Vec<usize>) {
        let (mut ids, mut ends) = (Vec::new(), vec![0]);
        for sample in samples {
            let latents = self.num_frames(shows) * self.config.frame_rows();
            ids.extend(std::iter::repeat_n(LATENT_ID, latents as usize));
            ids.extend(std::iter::repeat_n(0, self.config.horizon as usize));
            ids.extend(std::iter::repeat_n(TEXT_ID, self.samples[*sample].prompt as usize));
            ends.push(ids.len());
        }
        let tokens = Tensor::from_slice(&ids);
        let positions = Tensor::zeros([3, tokens.size()[0]], (Kind::Float, Device::Cpu));
        let WamConfig { horizon, action_dim, .. } = self.config;
        let weights = |sample: &usize| {
            let inside = self.samples[*sample].inside;
            let steps: Vec<f32> = (0..horizon).map(|step| f32::from(step < inside)).collect();
            Tensor::from_slice(&steps).unsqueeze(1).repeat([1, action_dim])
        };
        let of_frames = |sample: &usize| {
            // A frame of the latent is there where one of its four frames of pixels is.
            let inside = if shows == Shows::MaskedFrames { self.samples[*sample].frames } else { i64::MAX };
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

    /// Returns a micro-batch of these samples, of which only what it `shows` is given.
    pub fn batch(&self, samples: &[usize], shows: Shows) -> MicroBatch {
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
            constant_features: Default::default(),
            row: None,
            shared_features: Vec::new(),
            past: None,
            evaluates: false,
        }
    }

    /// Returns the fixture's noise and times of these samples, with one draw of their actions.
    pub fn noise(&self, samples: &[usize]) -> Noise {
        let times = |name: &str| Vec::<f32>::try_from(self.of(name, samples)).expect("a row of times");
        Noise {
            frames: self.places("video_noise", samples, Shows::All),
            actions: self.of("action_noise", samples).flatten(0, 1),
            frame_times: times("video_time"),
            action_times: times("action_time"),
        }
    }

    /// Returns the loss and gradients of a tape of these samples; `features` are those of [`Fixture::features`].
    pub fn run(&self, tape: FoundationTape, features: &[Tensor]) -> (f64, GradBuffer) {
        let inputs = tape.features.iter().flatten().zip(features).map(|(slot, x)| (*slot, x.shallow_clone())).collect();
        let mut run = Execution::new(tape.tape, self.params.clone(), inputs);
        run.forward().expect(ALONE);
        let slot = tape.loss.expect("a model of one rank");
        let loss = run.value(slot).double_value(&[]);
        run.seed(slot, Tensor::from(1f64));
        let mut grads = self.params.new_grad();
        run.backward(Some(&mut grads)).expect(ALONE);
        (loss, grads)
    }

    /// Returns the loss of these samples and the gradients of the parameters.
    pub fn loss(&self, samples: &[usize], shows: Shows, policy: Policy) -> (f64, GradBuffer) {
        let tape = self.model(policy).record_with(&self.batch(samples, shows), &self.noise(samples));
        self.run(tape, &self.features(samples, shows))
    }

    /// Returns the actions `[N, H, A]` of the fixture's noise.
    pub fn act(&self, samples: &[usize], shows: Shows) -> Option<Tensor> {
        let acting = self.config.acting(&self.params);
        let (columns, ends) = self.columns(samples, shows);
        let (start, steps) = (self.of("start", samples), self.config.num_steps as usize);
        let found = acting.act(
            Observed { columns: &columns, cu_seqlens: &ends, features: &self.features(samples, shows) },
            Denoising { noise: &start.flatten(0, 1), num_steps: steps, given: None },
        );
        Some(found?.view(start.size().as_slice()))
    }
}

impl ReferenceFixture for Fixture {
    fn compare(&self, with: &mut Comparisons) {
        let (all, expected) = (self.all(), grads_of(&self.expected));
        let of = |name: &str| self.expected[name].double_value(&[]);
        for (policy, name) in [(Policy::Keep, "kept"), (Policy::Recompute, "recomputed")] {
            let (loss, grads) = self.loss(&all, Shows::All, policy);
            with.number("loss", name, loss, of("loss"), TOLERANCE);
            with.gradients("gradients", [(&*self.params, &grads)], &expected, OF_GRADIENTS);
        }
        let (loss, _) = self.loss(&all, Shows::MaskedFrames, Policy::Keep);
        with.number("loss of frames", "masked", loss, of("loss_of_frames"), TOLERANCE);
        for sample in &all {
            let (loss, _) = self.loss(&[*sample], Shows::All, Policy::Keep);
            with.alone(*sample, all.len(), loss, &self.expected["of_samples"], TOLERANCE);
        }
        with.actions(self.act(&all, Shows::FirstFrame), &self.expected["sampled"], TOLERANCE);
    }

    fn losses(&self) -> [f64; 2] {
        let (loss, _) = self.loss(&self.all(), Shows::All, Policy::Keep);
        [loss, self.expected["loss"].double_value(&[])]
    }
}
