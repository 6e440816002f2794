//! A language model as a text tower: the hidden states of its layers.

use std::rc::Rc;

use tch::Tensor;

use crate::model::decoder::{Decoder, DecoderConfig, Interleaved};
use crate::model::stage::Stage;
use crate::model::tower_blocks::Part;
use crate::nn::RmsNorm;
use crate::params::{ParamSpec, ParamStore};
use crate::tape::{Policy, Slot, Tape};

/// The first layers of a decoder, and its last norm where that is wanted; it has no head.
pub(super) struct DecoderTower {
    decoder: Decoder,
    norm: Option<Part<RmsNorm>>,
}

fn first_layers(num_layers: usize) -> Stage {
    Stage { layers: 0..num_layers, is_first: true, is_last: false }
}

impl DecoderTower {
    /// Returns the parameters, under their names in the checkpoint.
    pub fn specs(config: &DecoderConfig, num_layers: usize, with_norm: bool) -> Vec<ParamSpec> {
        let mut specs = Decoder::stage_specs(config, &first_layers(num_layers));
        if with_norm {
            specs.extend(config.norm.specs("", &config.names.norm, config.hidden_size));
        }
        specs
    }

    /// Panics where the store was not made from this config's `specs` for as many layers.
    pub fn new(config: &DecoderConfig, num_layers: usize, with_norm: bool, params: &ParamStore) -> DecoderTower {
        let norm = || Part::new(params, "", |scope| config.norm.build(scope, &config.names.norm));
        DecoderTower { decoder: Decoder::stage(config, first_layers(num_layers), params), norm: with_norm.then(norm) }
    }

    /// Works like [`super::t5_tower::T5Tower::record`], for texts with `among` between their tokens.
    pub fn record(
        &self,
        tape: &mut Tape,
        ends: &[usize],
        ids: Slot,
        among: Option<Interleaved>,
        policy: Policy,
    ) -> Vec<Slot> {
        let mut states = self.decoder.record_states(tape, ends, ids, among, policy);
        if let Some(Part { part, ids }) = &self.norm {
            tape.set_alike(self.decoder.config().parallel.tp > 1);
            let (norm, last) = (Rc::clone(part), states.last_mut().expect("the embeddings"));
            let forward = move |reads: &[Tensor]| vec![norm.forward(&reads[0])];
            *last = tape.run("norm", ids, policy, &[*last], 1, forward)[0];
        }
        states
    }
}
