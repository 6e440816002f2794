//! A policy as a foundation.

use loongforge_core::message::Tower;
use tch::Kind;

use super::act::JoinedActing;
use super::config::{FRAME_WEIGHTS, LATENT_ID, NUM_IDS, TEXT_ID, WamConfig};
use super::network::{self, Network};
use crate::model::columns::{Column, INPUT_IDS};
use crate::model::foundation::FoundationShape;
use crate::model::policy::{
    Acting, ActionChunk, Architecture, PolicyOptions, RobotPolicy, STATE, action_columns, fixed_rows, state_column,
};
use crate::model::towers::FeatureInput;
use crate::params::{ParamSpec, ParamStore};
use crate::tape::Policy;

impl Architecture for WamConfig {
    type Network = Network;

    fn specs(&self) -> Vec<ParamSpec> {
        network::specs(self)
    }

    /// Returns the text encoder's, and the autoencoder's.
    fn inputs(&self) -> Vec<FeatureInput> {
        let input = |tower, width, id| FeatureInput { tower, num_tensors: 1, width, placeholders: vec![id] };
        vec![input(Tower::Text, self.video.text_dim, TEXT_ID), input(Tower::Vae, self.video.patch_dim(), LATENT_ID)]
    }

    fn columns(&self) -> Vec<Column> {
        let state = (self.state_dim > 0).then(|| state_column(self.state_dim));
        let frames = fixed_rows(FRAME_WEIGHTS, Kind::Float, self.num_frames - 1, Vec::new());
        action_columns(self.horizon, self.action_dim).into_iter().chain(state).chain([frames]).collect()
    }

    /// Returns the sizes of the work on a place of a frame: actions and rows of text are few beside them.
    fn shape(&self) -> FoundationShape {
        let video = &self.video;
        let heads = video.num_heads * video.head_dim;
        let layers = self.num_layers() as i64;
        let of_layer = 6 * video.width() * heads + 2 * video.width() * video.inner;
        let of_blocks = format!("{}mot.layers.", self.prefix);
        let is_met = |name: &str| name.starts_with(&of_blocks) && self.is_of_video(name);
        FoundationShape {
            width: video.width(),
            is_causal: false,
            attention: (2 * layers * heads) as f64,
            even_length: of_layer / (2 * heads),
            expert_share: 1.0,
            aside: self.specs().into_iter().map(|spec| spec.name).filter(|name| !is_met(name)).collect(),
        }
    }

    fn set_options(&mut self, options: PolicyOptions) {
        self.options = options;
    }

    fn network(&self, params: &ParamStore, policy: Policy) -> Network {
        Network::new(self, params, policy)
    }
}

impl RobotPolicy for WamConfig {
    fn chunk(&self) -> ActionChunk {
        let WamConfig { horizon, action_dim, num_steps, state_dim, .. } = *self;
        ActionChunk {
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
        self.options
    }

    fn maps_of_robot(&self) -> &'static [&'static str] {
        &["proprio_encoder", "action.action_encoder", "action.head"]
    }

    fn is_of_prefix(&self, name: &str) -> bool {
        self.is_of_video(name)
    }

    fn cannot(&self) -> Option<String> {
        let PolicyOptions { insulate, token_weight, flow_weight, .. } = self.options;
        let set = [
            (
                "policy.insulate",
                insulate,
                "frames are trained with a loss of their own; set freeze_video_expert in its config to freeze them",
            ),
            ("policy.token_weight", token_weight > 0.0, "it has no language model"),
            ("policy.flow_weight", flow_weight != 1.0, "set the weight of each loss in `loss` of its config"),
        ];
        let (key, _, why) = set.into_iter().find(|(_, is_set, _)| *is_set)?;
        Some(format!("{key}: FastWAM has no such training: {why}; leave it out"))
    }

    fn acting(&self, params: &ParamStore) -> Box<dyn Acting> {
        Box::new(JoinedActing::new(self, params))
    }
}
