//! A policy on its parameters.

use tch::{Device, Kind};

use super::config::PolicyConfig;
use super::embed::Embed;
use super::head::Head;
use super::layer::Layer;
use super::tokens::TokenHead;
use crate::model::tower_blocks::Part;
use crate::params::ParamStore;
use crate::tape::Policy;

/// A policy on its parameters.
pub(in crate::model) struct Network {
    pub(super) config: PolicyConfig,
    pub(super) embed: Embed,
    pub(super) layers: Vec<Layer>,
    pub(super) head: Part<Head>,
    /// What is behind the layers of the prefix, where it predicts tokens.
    pub(super) tokens: Option<TokenHead>,
    pub(super) policy: Policy,
    pub(super) device: Device,
    pub(super) kind: Kind,
}

impl Network {
    /// Panics where the store lacks one of the policy's parameters.
    pub fn new(config: &PolicyConfig, params: &ParamStore, policy: Policy) -> Network {
        let embed = Embed::new(config, params);
        Network {
            tokens: config.learns_tokens().then(|| TokenHead::new(config, params, &embed, policy)),
            embed,
            layers: (0..config.num_layers()).map(|number| Layer::new(config, number, params)).collect(),
            head: Head::part(config, params),
            policy,
            device: params.flat().device(),
            kind: params.flat().kind(),
            config: config.clone(),
        }
    }
}
