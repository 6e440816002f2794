//! A policy as a foundation.

use std::rc::Rc;
use std::sync::Arc;

use super::act::TwoStreams;
use super::config::{PolicyConfig, PolicyOptions, STATE, StateToken};
use super::network::Network;
use super::noise::{Noise, samples_of};
use super::robot::{Acting, Chunk, RobotPolicy};
use super::{embed, head, layer};
use crate::model::batch::MicroBatch;
use crate::model::columns::{Column, INPUT_IDS};
use crate::model::foundation::{FoundationFamily, FoundationModel, FoundationShape, FoundationTape};
use crate::model::objective::FlowSettings;
use crate::model::towers::FeatureInput;
use crate::params::{ParamSpec, ParamStore};
use crate::tape::Policy;

/// A policy that learns velocities from actions to noise.
#[derive(Clone, Debug)]
pub struct PolicyFamily {
    config: PolicyConfig,
    inputs: Vec<FeatureInput>,
    flow: FlowSettings,
}

impl PolicyFamily {
    /// The policy with the mean square error of a run without a seed.
    pub fn new(config: PolicyConfig) -> PolicyFamily {
        let (inputs, flow) = (vec![config.input()], FlowSettings::default());
        PolicyFamily { config, inputs, flow }
    }

    pub fn config(&self) -> &PolicyConfig {
        &self.config
    }

    /// The same with these settings.
    #[must_use]
    pub fn with_options(self, options: PolicyOptions) -> PolicyFamily {
        PolicyFamily { config: PolicyConfig { options, ..self.config }, ..self }
    }

    pub(super) fn model(&self, params: &ParamStore, policy: Policy) -> PolicyModel {
        PolicyModel {
            network: Network::new(&self.config, params, policy),
            columns: self.columns().into(),
            family: self.clone(),
        }
    }
}

impl FoundationFamily for PolicyFamily {
    fn specs(&self) -> Vec<ParamSpec> {
        let layers = (0..self.config.num_layers()).flat_map(|number| layer::specs(&self.config, number));
        embed::specs(&self.config).into_iter().chain(layers).chain(head::specs(&self.config)).collect()
    }

    fn inputs(&self) -> &[FeatureInput] {
        &self.inputs
    }

    fn columns(&self) -> Vec<Column> {
        self.config.columns()
    }

    /// Of a token of the prefix: actions are few beside them.
    fn shape(&self) -> FoundationShape {
        let (text, layers) = (self.config.text, format!("{}layers.", self.config.text_prefix()));
        let aside = self.specs().into_iter().map(|spec| spec.name).filter(|name| !name.starts_with(&layers));
        FoundationShape {
            width: text.width,
            is_causal: false,
            attention: (2 * text.num_heads * text.head_dim * text.depth) as f64,
            even_length: layer_size(&self.config) / (2 * text.num_heads * text.head_dim),
            expert_share: 1.0,
            aside: aside.collect(),
        }
    }

    fn with_flow(&self, flow: FlowSettings) -> Option<Arc<dyn FoundationFamily>> {
        Some(Arc::new(PolicyFamily { flow, ..self.clone() }))
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

impl RobotPolicy for PolicyFamily {
    fn chunk(&self) -> Chunk {
        let PolicyConfig { horizon, action_dim, num_steps, vocab_size, image_token, state, .. } = self.config;
        let state = (state != StateToken::None).then_some(STATE);
        let columns = std::iter::once(INPUT_IDS).chain(state).collect();
        Chunk { horizon, action_dim, num_steps, vocab_size, image_token, columns, writes: false }
    }

    fn options(&self) -> PolicyOptions {
        self.config.options
    }

    /// Where each action has a time of its own in the norms, those that are given have that of no noise.
    fn continues_chunks(&self) -> bool {
        self.config.has_condition()
    }

    fn is_of_prefix(&self, name: &str) -> bool {
        self.config.is_of_prefix(name)
    }

    fn acting(&self, params: &ParamStore) -> Box<dyn Acting> {
        Box::new(TwoStreams::new(&self.config, params))
    }

    fn as_two_streams(&self) -> Option<&PolicyConfig> {
        Some(&self.config)
    }
}

/// The weights that a token of the prefix is multiplied with in a layer.
fn layer_size(config: &PolicyConfig) -> i64 {
    let text = config.text;
    let heads = 2 * (text.num_heads + text.num_kv_heads) * text.head_dim;
    text.width * (heads + 3 * text.mlp_dim)
}

/// A policy on its parameters.
pub(super) struct PolicyModel {
    pub network: Network,
    columns: Rc<[Column]>,
    family: PolicyFamily,
}

impl PolicyModel {
    pub fn record_with(&self, batch: &MicroBatch, noise: &Noise) -> FoundationTape {
        let PolicyFamily { inputs, flow, .. } = &self.family;
        self.network.record(batch, &samples_of(batch), noise, flow, &inputs[0])
    }
}

impl FoundationModel for PolicyModel {
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
