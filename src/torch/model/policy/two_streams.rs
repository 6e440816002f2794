//! A policy of two streams as a foundation.

use loongforge_core::message::Tower;

use super::act::TwoStreams;
use super::columns::{STATE, action_columns, state_column};
use super::config::{PolicyConfig, PolicyOptions, StateToken};
use super::family::Architecture;
use super::network::Network;
use super::robot::{Acting, ActionChunk, RobotPolicy};
use super::{embed, head, layer};
use crate::model::columns::{Column, INPUT_IDS};
use crate::model::foundation::FoundationShape;
use crate::model::towers::FeatureInput;
use crate::params::{ParamSpec, ParamStore};
use crate::tape::Policy;

impl Architecture for PolicyConfig {
    type Network = Network;

    fn specs(&self) -> Vec<ParamSpec> {
        let layers = (0..self.num_layers()).flat_map(|number| layer::specs(self, number));
        embed::specs(self).into_iter().chain(layers).chain(head::specs(self)).collect()
    }

    fn inputs(&self) -> Vec<FeatureInput> {
        vec![FeatureInput {
            tower: Tower::Vision,
            num_tensors: 1,
            width: self.text.width,
            placeholders: vec![self.image_token],
        }]
    }

    fn columns(&self) -> Vec<Column> {
        let state = (self.state != StateToken::None).then(|| state_column(self.state_dim));
        action_columns(self.horizon, self.action_dim).into_iter().chain(state).collect()
    }

    /// Returns the sizes of the work on a token of the prefix: actions are few beside them.
    fn shape(&self) -> FoundationShape {
        let (text, layers) = (self.text, format!("{}layers.", self.text_prefix()));
        let aside = self.specs().into_iter().map(|spec| spec.name).filter(|name| !name.starts_with(&layers));
        FoundationShape {
            width: text.width,
            is_causal: false,
            attention: (2 * text.num_heads * text.head_dim * text.depth) as f64,
            even_length: layer_size(self) / (2 * text.num_heads * text.head_dim),
            expert_share: 1.0,
            aside: aside.collect(),
        }
    }

    fn set_options(&mut self, options: PolicyOptions) {
        self.options = options;
    }

    fn network(&self, params: &ParamStore, policy: Policy) -> Network {
        Network::new(self, params, policy)
    }
}

impl RobotPolicy for PolicyConfig {
    fn chunk(&self) -> ActionChunk {
        let PolicyConfig { horizon, action_dim, num_steps, vocab_size, image_token, state, .. } = *self;
        let state = (state != StateToken::None).then_some(STATE);
        let columns = std::iter::once(INPUT_IDS).chain(state).collect();
        ActionChunk { horizon, action_dim, num_steps, vocab_size, image_token, columns, writes: false }
    }

    fn options(&self) -> PolicyOptions {
        self.options
    }

    fn maps_of_robot(&self) -> &'static [&'static str] {
        &["state_proj", "action_in_proj", "action_out_proj"]
    }

    /// Returns whether the policy can go on with a chunk: each action has a time of its own in the norms, and given actions have the time
    /// of no noise.
    fn continues_chunks(&self) -> bool {
        self.has_condition()
    }

    fn is_of_prefix(&self, name: &str) -> bool {
        let is_state = self.state.is_in_prefix() && name.contains("state_proj");
        is_state || name.starts_with(&self.vlm_prefix())
    }

    fn acting(&self, params: &ParamStore) -> Box<dyn Acting> {
        Box::new(TwoStreams::new(self, params))
    }

    fn as_two_streams(&self) -> Option<&PolicyConfig> {
        Some(self)
    }
}

/// Returns the number of weights that a token of the prefix is multiplied with in a layer.
fn layer_size(config: &PolicyConfig) -> i64 {
    let text = config.text;
    let heads = 2 * (text.num_heads + text.num_kv_heads) * text.head_dim;
    text.width * (heads + 3 * text.mlp_dim)
}
