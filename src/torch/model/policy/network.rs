//! A policy on its parameters.

use tch::{Device, Kind};

use super::config::{PolicyConfig, StateToken};
use super::embed::Embed;
use super::head::Head;
use super::layer::Layer;
use super::tokens::TokenHead;
use crate::model::tower_blocks::Part;
use crate::params::{ParamId, ParamStore, Role};
use crate::tape::Policy;

/// A policy on its parameters.
pub(in crate::model) struct Network {
    pub(super) config: PolicyConfig,
    pub(super) embed: Embed,
    pub(super) layers: Vec<Layer>,
    pub(super) head: Part<Head>,
    /// The head behind the layers of the prefix, where it predicts tokens.
    pub(super) tokens: Option<TokenHead>,
    /// True if of the prefix nothing is learned but the map of states, which no token sees.
    pub(super) learns_states_alone: bool,
    pub(super) policy: Policy,
    pub(super) device: Device,
    pub(super) kind: Kind,
}

impl Network {
    /// Panics where the store lacks one of the policy's parameters.
    pub fn new(config: &PolicyConfig, params: &ParamStore, policy: Policy) -> Network {
        let embed = Embed::new(config, params);
        let layers: Vec<Layer> = (0..config.num_layers()).map(|number| Layer::new(config, number, params)).collect();
        let of_layers = layers.iter().flat_map(|layer| {
            let mlp = layer.prefix.iter().flat_map(|mlp| &mlp.ids);
            layer.prefix_heads.ids.iter().chain(mlp)
        });
        let is_trained = |id: &ParamId| params.spec(*id).role == Role::Trained;
        let learns_tokens = config.learns_tokens() || embed.tokens.ids.iter().chain(of_layers).any(is_trained);
        Network {
            learns_states_alone: config.state == StateToken::PrefixLevel && !learns_tokens,
            tokens: config.learns_tokens().then(|| TokenHead::new(config, params, &embed, policy)),
            embed,
            layers,
            head: Head::part(config, params),
            policy,
            device: params.flat().device(),
            kind: params.flat().kind(),
            config: config.clone(),
        }
    }
}
