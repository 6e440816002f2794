//! A policy as a foundation.

use std::rc::Rc;
use std::sync::Arc;

use super::act::JoinedActing;
use super::config::{LATENT_ID, NUM_IDS, STATE, WamConfig};
use super::layout::Samples;
use super::network::{Network, specs};
use super::noise::Noise;
use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::columns::{Column, INPUT_IDS};
use crate::model::foundation::{FoundationFamily, FoundationModel, FoundationShape, FoundationTape};
use crate::model::objective::FlowSettings;
use crate::model::policy::{Acting, Chunk, PolicyOptions, RobotPolicy, samples_of};
use crate::model::towers::FeatureInput;
use crate::params::{ParamSpec, ParamStore};
use crate::tape::Policy;

/// A policy that learns what the camera will see beside what it does.
#[derive(Clone, Debug)]
pub struct WamFamily {
    config: WamConfig,
    inputs: Vec<FeatureInput>,
    flow: FlowSettings,
}

impl WamFamily {
    /// The policy with the mean square errors of a run without a seed.
    pub fn new(config: WamConfig) -> WamFamily {
        let (inputs, flow) = (config.inputs(), FlowSettings::default());
        WamFamily { config, inputs, flow }
    }

    pub(super) fn model(&self, params: &ParamStore, policy: Policy) -> WamModel {
        WamModel {
            network: Network::new(&self.config, params, policy),
            columns: self.columns().into(),
            family: self.clone(),
        }
    }
}

impl FoundationFamily for WamFamily {
    fn specs(&self) -> Vec<ParamSpec> {
        specs(&self.config)
    }

    fn inputs(&self) -> &[FeatureInput] {
        &self.inputs
    }

    fn columns(&self) -> Vec<Column> {
        self.config.columns()
    }

    /// Of a place of a frame: actions and rows of text are few beside them.
    fn shape(&self) -> FoundationShape {
        let video = &self.config.video;
        let heads = video.num_heads * video.head_dim;
        let layers = self.config.num_layers() as i64;
        let of_layer = 6 * video.width() * heads + 2 * video.width() * video.inner;
        let of_blocks = format!("{}mot.layers.", self.config.prefix);
        let is_met = |name: &str| name.starts_with(&of_blocks) && self.config.is_of_video(name);
        FoundationShape {
            width: video.width(),
            is_causal: false,
            attention: (2 * layers * heads) as f64,
            even_length: of_layer / (2 * heads),
            expert_share: 1.0,
            aside: self.specs().into_iter().map(|spec| spec.name).filter(|name| !is_met(name)).collect(),
        }
    }

    fn with_flow(&self, flow: FlowSettings) -> Option<Arc<dyn FoundationFamily>> {
        Some(Arc::new(WamFamily { flow, ..self.clone() }))
    }

    fn with_policy(&self, options: PolicyOptions) -> Option<Arc<dyn FoundationFamily>> {
        Some(Arc::new(WamFamily { config: WamConfig { options, ..self.config.clone() }, ..self.clone() }))
    }

    fn as_policy(&self) -> Option<&dyn RobotPolicy> {
        Some(self)
    }

    fn needs_whole_rows(&self) -> Option<&'static str> {
        Some("a robot policy")
    }

    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn FoundationModel> {
        Box::new(self.model(params, policy))
    }
}

impl RobotPolicy for WamFamily {
    fn chunk(&self) -> Chunk {
        let WamConfig { horizon, action_dim, num_steps, state_dim, .. } = self.config;
        Chunk {
            writes: false,
            horizon,
            action_dim,
            num_steps,
            vocab_size: NUM_IDS,
            image_token: LATENT_ID,
            columns: std::iter::once(INPUT_IDS).chain((state_dim > 0).then_some(STATE)).collect(),
        }
    }

    fn options(&self) -> PolicyOptions {
        self.config.options
    }

    fn is_of_prefix(&self, name: &str) -> bool {
        self.config.is_of_video(name)
    }

    fn cannot(&self) -> Option<String> {
        let PolicyOptions { noise_draws, insulate, token_weight, flow_weight, .. } = self.config.options;
        let set = [
            (
                "policy.noise_draws",
                noise_draws > 1,
                "frames are noised beside actions, so that draws have nothing in common",
            ),
            (
                "policy.insulate",
                insulate,
                "frames learn by a loss of their own; freeze_video_expert in its config freezes them",
            ),
            ("policy.token_weight", token_weight > 0.0, "it has no language model"),
            ("policy.flow_weight", flow_weight != 1.0, "loss in its config has a weight of each of its losses"),
        ];
        let (key, _, why) = set.into_iter().find(|(_, is_set, _)| *is_set)?;
        Some(format!("{key}: FastWAM has no such training: {why}; leave it out"))
    }

    fn acting(&self, params: &ParamStore) -> Box<dyn Acting> {
        Box::new(JoinedActing::new(&self.config, params))
    }
}

/// A policy on its parameters.
pub(super) struct WamModel {
    pub network: Network,
    columns: Rc<[Column]>,
    family: WamFamily,
}

impl WamModel {
    /// Records a batch with the noise that `draw` makes for its rows and places.
    pub fn record_with(
        &self,
        batch: &MicroBatch,
        draw: impl FnOnce(&[SampleRow], &Samples) -> Noise,
    ) -> FoundationTape {
        let (rows, samples) = (samples_of(batch), self.network.samples(batch));
        let noise = draw(&rows, &samples);
        self.network.record(batch, (&rows, &samples), &noise, &self.family.flow)
    }
}

impl FoundationModel for WamModel {
    fn columns(&self) -> &Rc<[Column]> {
        &self.columns
    }

    fn inputs(&self) -> &[FeatureInput] {
        &self.family.inputs
    }

    fn record(&self, batch: &MicroBatch) -> FoundationTape {
        let WamFamily { config, flow, .. } = &self.family;
        self.record_with(batch, |rows, samples| Noise::draw(config, rows, samples, flow.seed))
    }
}
