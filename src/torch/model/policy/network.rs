//! A policy on its parameters.

use tch::{Device, Kind};

use super::config::PolicyConfig;
use super::embed::Embed;
use super::head::Head;
use super::layer::Layer;
use crate::model::tower_blocks::Part;
use crate::params::ParamStore;
use crate::tape::Policy;

/// A policy on its parameters.
pub(super) struct Network {
    pub config: PolicyConfig,
    pub embed: Embed,
    pub layers: Vec<Layer>,
    pub head: Part<Head>,
    pub policy: Policy,
    pub device: Device,
    pub kind: Kind,
}

impl Network {
    /// Panics where the store lacks one of the policy's parameters.
    pub fn new(config: &PolicyConfig, params: &ParamStore, policy: Policy) -> Network {
        Network {
            embed: Embed::new(config, params),
            layers: (0..config.num_layers()).map(|number| Layer::new(config, number, params)).collect(),
            head: Head::part(config, params),
            policy,
            device: params.flat().device(),
            kind: params.flat().kind(),
            config: config.clone(),
        }
    }
}
