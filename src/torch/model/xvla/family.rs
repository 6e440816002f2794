//! A policy as a foundation.

use std::rc::Rc;
use std::sync::Arc;

use super::act::SoftPrompted;
use super::config::{DOMAIN, STATE, XvlaConfig};
use super::network::{self, Network};
use crate::model::batch::MicroBatch;
use crate::model::columns::{Column, INPUT_IDS};
use crate::model::foundation::{FoundationFamily, FoundationModel, FoundationShape, FoundationTape};
use crate::model::objective::FlowSettings;
use crate::model::policy::{Acting, Chunk, Noise, PolicyOptions, RobotPolicy, samples_of};
use crate::model::towers::FeatureInput;
use crate::params::{ParamSpec, ParamStore};
use crate::tape::Policy;

/// A policy that learns actions of noised ones.
#[derive(Clone, Debug)]
pub struct XvlaFamily {
    config: XvlaConfig,
    inputs: Vec<FeatureInput>,
    flow: FlowSettings,
}

impl XvlaFamily {
    /// The policy with the mean square error of a run without a seed.
    pub fn new(config: XvlaConfig) -> XvlaFamily {
        let (inputs, flow) = (vec![config.input()], FlowSettings::default());
        XvlaFamily { config, inputs, flow }
    }

    /// The same with these settings.
    #[must_use]
    pub fn with_options(self, options: PolicyOptions) -> XvlaFamily {
        XvlaFamily { config: XvlaConfig { options, ..self.config }, ..self }
    }

    pub(super) fn model(&self, params: &ParamStore, policy: Policy) -> XvlaModel {
        XvlaModel {
            network: Network::new(&self.config, params, policy),
            columns: self.columns().into(),
            family: self.clone(),
        }
    }
}

impl FoundationFamily for XvlaFamily {
    fn specs(&self) -> Vec<ParamSpec> {
        network::specs(&self.config)
    }

    fn inputs(&self) -> &[FeatureInput] {
        &self.inputs
    }

    fn columns(&self) -> Vec<Column> {
        self.config.columns()
    }

    /// Of a token, which both transformers read: actions and prompts are few beside them.
    fn shape(&self) -> FoundationShape {
        let XvlaConfig { width, depth, mlp_dim, language, .. } = &self.config;
        let of_blocks = depth * (4 * width * width + 2 * width * mlp_dim);
        let of_language = language.encoder.multiplied(language.width, 1);
        let attention = 2 * (depth * width + language.encoder.num_layers * language.width);
        let aside = self.specs().into_iter().filter(|spec| !spec.is_linear).map(|spec| spec.name);
        FoundationShape {
            width: language.width,
            is_causal: false,
            attention: attention as f64,
            even_length: (of_blocks + of_language) / attention,
            expert_share: 1.0,
            aside: aside.collect(),
        }
    }

    fn with_flow(&self, flow: FlowSettings) -> Option<Arc<dyn FoundationFamily>> {
        Some(Arc::new(XvlaFamily { flow, ..self.clone() }))
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

impl RobotPolicy for XvlaFamily {
    fn chunk(&self) -> Chunk {
        let XvlaConfig { horizon, num_steps, image_token, state_dim, .. } = self.config;
        let state = (state_dim > 0).then_some(STATE);
        Chunk {
            writes: false,
            horizon,
            action_dim: self.config.action_dim(),
            num_steps,
            vocab_size: self.config.language.vocab_size,
            image_token,
            columns: [INPUT_IDS, DOMAIN].into_iter().chain(state).collect(),
        }
    }

    fn options(&self) -> PolicyOptions {
        self.config.options
    }

    fn is_of_prefix(&self, name: &str) -> bool {
        self.config.is_of_prefix(name)
    }

    fn acting(&self, params: &ParamStore) -> Box<dyn Acting> {
        Box::new(SoftPrompted::new(&self.config, params))
    }
}

/// A policy on its parameters.
pub(super) struct XvlaModel {
    pub network: Network,
    columns: Rc<[Column]>,
    family: XvlaFamily,
}

impl XvlaModel {
    pub fn record_with(&self, batch: &MicroBatch, noise: &Noise) -> FoundationTape {
        let XvlaFamily { inputs, flow, .. } = &self.family;
        self.network.record(batch, &samples_of(batch), noise, flow, &inputs[0])
    }
}

impl FoundationModel for XvlaModel {
    fn columns(&self) -> &Rc<[Column]> {
        &self.columns
    }

    fn inputs(&self) -> &[FeatureInput] {
        &self.family.inputs
    }

    fn record(&self, batch: &MicroBatch) -> FoundationTape {
        let noise = self.network.draw(&samples_of(batch), self.family.flow.seed);
        self.record_with(batch, &noise)
    }
}
