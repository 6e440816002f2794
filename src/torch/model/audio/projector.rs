//! The projector from an audio tower's states to features of the decoder's width.
//!
//! Shapes: K states, D their width, X values of a stack, N features, E width of the decoder.

use tch::Tensor;

use crate::model::tower_blocks::Part;
use crate::nn::{Activation, Linear};
use crate::params::{ParamSpec, ParamStore};
use crate::tape::{Policy, Slot, Tape};

/// Linear maps one after the other, of states side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct AudioProjectorConfig {
    pub prefix: String,
    /// Width of a state.
    pub inputs: i64,
    /// Consecutive states that become one feature.
    pub stack: i64,
    pub maps: Vec<ProjectorMap>,
    /// Between two maps.
    pub activation: Activation,
    pub initializer_range: f64,
}

/// A linear map to a width of `outputs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectorMap {
    pub name: &'static str,
    pub outputs: i64,
    pub bias: bool,
}

/// The projector of a config, on its parameters.
pub(in crate::model) struct AudioProjector {
    stacked: i64,
    activation: Activation,
    maps: Part<Vec<Linear>>,
}

impl AudioProjectorConfig {
    /// Returns whether it has the parameter of this name.
    pub fn has(&self, name: &str) -> bool {
        let Some(rest) = name.strip_prefix(&self.prefix) else { return false };
        self.maps.iter().any(|map| rest.strip_prefix(map.name).is_some_and(|rest| rest.starts_with('.')))
    }

    /// Returns the parameters, under their names in the checkpoint.
    pub fn specs(&self) -> Vec<ParamSpec> {
        let mut inputs = self.stack * self.inputs;
        let mut specs = Vec::new();
        for ProjectorMap { name, outputs, bias } in &self.maps {
            specs.extend(Linear::specs(&self.prefix, name, inputs, *outputs, *bias, self.initializer_range));
            inputs = *outputs;
        }
        specs
    }
}

impl AudioProjector {
    /// Panics where the store was not made from this config's `specs`.
    pub fn new(config: &AudioProjectorConfig, params: &ParamStore) -> AudioProjector {
        let maps = Part::new(params, config.prefix.as_str(), |scope| {
            config.maps.iter().map(|map| Linear::new(scope, map.name)).collect()
        });
        AudioProjector { stacked: config.stack * config.inputs, activation: config.activation, maps }
    }

    /// Records the projection of `states` `[K, D]` to `[N, E]`.
    pub fn record(&self, tape: &mut Tape, states: Slot, policy: Policy) -> Slot {
        let (maps, stacked, activation) = (self.maps.part.clone(), self.stacked, self.activation);
        let forward = move |reads: &[Tensor]| {
            let mut x = reads[0].reshape([-1, stacked]);
            for (number, map) in maps.iter().enumerate() {
                if number > 0 {
                    x = activation.forward(&x);
                }
                x = map.forward(&x);
            }
            vec![x]
        };
        tape.run("projector", &self.maps.ids, policy, &[states], 1, forward)[0]
    }
}
