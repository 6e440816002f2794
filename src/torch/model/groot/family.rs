//! A policy as a foundation.

use std::rc::Rc;
use std::sync::Arc;

use super::act::GrootActing;
use super::config::{EMBODIMENT, GrootConfig, STATE};
use super::flowing::Noise;
use super::network::{Network, specs};
use crate::model::batch::MicroBatch;
use crate::model::columns::{Column, INPUT_IDS, POSITION_IDS};
use crate::model::foundation::{FoundationFamily, FoundationModel, FoundationShape, FoundationTape};
use crate::model::objective::FlowSettings;
use crate::model::policy::{Acting, Chunk, PolicyOptions, RobotPolicy, samples_of};
use crate::model::towers::FeatureInput;
use crate::params::{ParamSpec, ParamStore};
use crate::tape::Policy;

/// A policy that learns velocities from noise to actions, of several embodiments.
#[derive(Clone, Debug)]
pub struct GrootFamily {
    config: GrootConfig,
    inputs: [FeatureInput; 1],
    flow: FlowSettings,
}

impl GrootFamily {
    /// The policy with the mean square error of a run without a seed.
    pub fn new(config: GrootConfig) -> GrootFamily {
        let (inputs, flow) = ([config.input.clone()], FlowSettings::default());
        GrootFamily { config, inputs, flow }
    }

    /// The same with these settings.
    #[must_use]
    pub fn with_options(self, options: PolicyOptions) -> GrootFamily {
        GrootFamily { config: GrootConfig { options, ..self.config }, ..self }
    }

    pub(super) fn model(&self, params: &ParamStore, policy: Policy) -> GrootModel {
        GrootModel {
            network: Network::new(&self.config, params, policy),
            columns: self.columns().into(),
            family: self.clone(),
        }
    }
}

impl FoundationFamily for GrootFamily {
    fn specs(&self) -> Vec<ParamSpec> {
        specs(&self.config)
    }

    fn inputs(&self) -> &[FeatureInput] {
        &self.inputs
    }

    fn columns(&self) -> Vec<Column> {
        self.config.columns()
    }

    /// Of a token: rows of actions are few beside them.
    fn shape(&self) -> FoundationShape {
        let (backbone, context) = (&self.config.backbone, &self.config.context);
        let layers = [backbone.layer_prefix(0), format!("{}vl_self_attention.", self.config.head_prefix())];
        let layers = [layers[0].trim_end_matches("0.").to_owned(), layers[1].clone()];
        let is_aside = |name: &String| !layers.iter().any(|prefix| name.starts_with(prefix));
        FoundationShape {
            width: backbone.hidden_size,
            is_causal: true,
            attention: backbone.attention() + (2 * context.width() * context.num_layers) as f64,
            even_length: 12 * backbone.hidden_size,
            expert_share: 1.0,
            aside: self.specs().into_iter().map(|spec| spec.name).filter(is_aside).collect(),
        }
    }

    fn with_flow(&self, flow: FlowSettings) -> Option<Arc<dyn FoundationFamily>> {
        Some(Arc::new(GrootFamily { flow, ..self.clone() }))
    }

    fn with_policy(&self, options: PolicyOptions) -> Option<Arc<dyn FoundationFamily>> {
        Some(Arc::new(self.clone().with_options(options)))
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

impl RobotPolicy for GrootFamily {
    fn chunk(&self) -> Chunk {
        Chunk {
            writes: false,
            horizon: self.config.horizon,
            action_dim: self.config.action_dim,
            num_steps: self.config.num_steps,
            vocab_size: self.config.backbone.vocab_size,
            image_token: self.config.input.placeholders[0],
            columns: vec![INPUT_IDS, POSITION_IDS, STATE, EMBODIMENT],
        }
    }

    fn options(&self) -> PolicyOptions {
        self.config.options
    }

    fn is_of_prefix(&self, name: &str) -> bool {
        name.starts_with(&self.config.backbone_prefix())
    }

    fn freezes_tower(&self) -> bool {
        !self.config.tuned.visual
    }

    fn acting(&self, params: &ParamStore) -> Box<dyn Acting> {
        Box::new(GrootActing::new(&self.config, params))
    }
}

/// A policy on its parameters.
pub(super) struct GrootModel {
    network: Network,
    columns: Rc<[Column]>,
    family: GrootFamily,
}

impl GrootModel {
    pub fn record_with(&self, batch: &MicroBatch, noise: &Noise) -> FoundationTape {
        self.network.record(batch, &samples_of(batch), noise, &self.family.flow)
    }

    pub fn draw(&self, batch: &MicroBatch) -> Noise {
        Noise::draw(&self.family.config, batch, &samples_of(batch), self.family.flow.seed)
    }
}

impl FoundationModel for GrootModel {
    fn columns(&self) -> &Rc<[Column]> {
        &self.columns
    }

    fn inputs(&self) -> &[FeatureInput] {
        &self.family.inputs
    }

    fn record(&self, batch: &MicroBatch) -> FoundationTape {
        self.record_with(batch, &self.draw(batch))
    }
}
