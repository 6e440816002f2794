//! A policy as a foundation.

use loongforge_core::message::Tower;
use tch::Kind;

use super::act::SoftPrompted;
use super::config::{DOMAIN, XvlaConfig};
use super::network::{self, Network};
use crate::model::columns::{Column, INPUT_IDS};
use crate::model::foundation::FoundationShape;
use crate::model::policy::{
    Acting, ActionChunk, Architecture, PolicyOptions, RobotPolicy, STATE, action_columns, fixed_rows, state_column,
};
use crate::model::towers::FeatureInput;
use crate::params::{ParamSpec, ParamStore};
use crate::tape::Policy;

impl Architecture for XvlaConfig {
    type Network = Network;

    fn specs(&self) -> Vec<ParamSpec> {
        network::specs(self)
    }

    fn inputs(&self) -> Vec<FeatureInput> {
        vec![FeatureInput {
            tower: Tower::Vision,
            num_tensors: 1,
            width: self.language.width,
            placeholders: vec![self.image_token],
        }]
    }

    fn columns(&self) -> Vec<Column> {
        let state = (self.state_dim > 0).then(|| state_column(self.state_dim));
        let domain = fixed_rows(DOMAIN, Kind::Int64, 1, Vec::new());
        action_columns(self.horizon, self.action_dim()).into_iter().chain(state).chain([domain]).collect()
    }

    /// Returns the sizes of the work on a token, which both transformers read: actions and prompts are few beside them.
    fn shape(&self) -> FoundationShape {
        let XvlaConfig { width, depth, mlp_dim, language, .. } = self;
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

    fn set_options(&mut self, options: PolicyOptions) {
        self.options = options;
    }

    fn network(&self, params: &ParamStore, policy: Policy) -> Network {
        Network::new(self, params, policy)
    }
}

impl RobotPolicy for XvlaConfig {
    fn chunk(&self) -> ActionChunk {
        let state = (self.state_dim > 0).then_some(STATE);
        ActionChunk {
            writes: false,
            horizon: self.horizon,
            action_dim: self.action_dim(),
            num_steps: self.num_steps,
            vocab_size: self.language.vocab_size,
            image_token: self.image_token,
            columns: [INPUT_IDS, DOMAIN].into_iter().chain(state).collect(),
        }
    }

    fn options(&self) -> PolicyOptions {
        self.options
    }

    fn maps_of_robot(&self) -> &'static [&'static str] {
        &["soft_prompt_hub", "action_encoder", "action_decoder"]
    }

    fn is_of_prefix(&self, name: &str) -> bool {
        name.starts_with(&format!("{}vlm.", self.prefix))
    }

    fn acting(&self, params: &ParamStore) -> Box<dyn Acting> {
        Box::new(SoftPrompted::new(self, params))
    }
}
