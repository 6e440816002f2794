//! A policy as a foundation.

use tch::Kind;

use super::act::GrootActing;
use super::config::{EMBODIMENT, GrootConfig, Tuned};
use super::network::{self, Network};
use super::prefix;
use crate::model::columns::{Column, INPUT_IDS, POSITION_IDS};
use crate::model::foundation::FoundationShape;
use crate::model::policy::{
    Acting, ActionChunk, Architecture, PolicyOptions, RobotPolicy, STATE, action_columns, fixed_rows, state_column,
};
use crate::model::towers::{FeatureInput, ModelTower, Towers};
use crate::params::{ParamSpec, ParamStore};
use crate::tape::Policy;

impl Architecture for GrootConfig {
    type Network = Network;

    fn specs(&self) -> Vec<ParamSpec> {
        network::specs(self)
    }

    fn inputs(&self) -> Vec<FeatureInput> {
        vec![if self.split { prefix::states_input(self) } else { self.input.clone() }]
    }

    fn with_prefix_tower(&self, towers: &Towers) -> Option<(GrootConfig, ModelTower)> {
        prefix::split(self, towers)
    }

    fn columns(&self) -> Vec<Column> {
        let own = [state_column(self.state_dim), fixed_rows(EMBODIMENT, Kind::Int64, 1, Vec::new())];
        action_columns(self.horizon, self.action_dim).into_iter().chain(own).collect()
    }

    /// Returns the sizes of the work on a token: rows of actions are few beside them.
    fn shape(&self) -> FoundationShape {
        let (backbone, context) = (&self.backbone, &self.context);
        let layers = [backbone.layer_prefix(0), format!("{}vl_self_attention.", self.head_prefix())];
        let layers = [layers[0].trim_end_matches("0.").to_owned(), layers[1].clone()];
        let is_aside = |name: &String| !layers.iter().any(|prefix| name.starts_with(prefix));
        let of_backbone = if self.split { 0.0 } else { backbone.attention() };
        FoundationShape {
            width: backbone.hidden_size,
            is_causal: !self.split,
            attention: of_backbone + (2 * context.width() * context.num_layers) as f64,
            even_length: 12 * backbone.hidden_size,
            expert_share: 1.0,
            aside: self.specs().into_iter().map(|spec| spec.name).filter(is_aside).collect(),
        }
    }

    fn set_options(&mut self, options: PolicyOptions) {
        self.options = options;
    }

    fn network(&self, params: &ParamStore, policy: Policy) -> Network {
        Network::new(self, params, policy)
    }
}

impl RobotPolicy for GrootConfig {
    fn chunk(&self) -> ActionChunk {
        ActionChunk {
            writes: false,
            horizon: self.horizon,
            action_dim: self.action_dim,
            num_steps: self.num_steps,
            vocab_size: self.backbone.vocab_size,
            image_token: self.input.placeholders[0],
            columns: vec![INPUT_IDS, POSITION_IDS, STATE, EMBODIMENT],
        }
    }

    fn options(&self) -> PolicyOptions {
        self.options
    }

    fn maps_of_robot(&self) -> &'static [&'static str] {
        &["state_encoder", "action_encoder", "action_decoder"]
    }

    fn is_of_prefix(&self, name: &str) -> bool {
        name.starts_with(&self.backbone_prefix())
    }

    fn freezes_tower(&self) -> bool {
        let Tuned { llm, top_llm_layers, visual, .. } = self.tuned;
        !visual && (!self.split || !llm && top_llm_layers == 0)
    }

    fn acting(&self, params: &ParamStore) -> Box<dyn Acting> {
        Box::new(GrootActing::new(self, params))
    }
}
