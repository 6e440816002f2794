//! BART's encoder over rows that features and tokens have made.
//!
//! Shapes: T rows of all tokens, R rows of all sequences, D width.

use std::rc::Rc;

use tch::{Device, Tensor};

use super::config::BartConfig;
use super::layer::{Attends, Attention, FeedForward, OFFSET, Positions};
use crate::model::tower_blocks::Part;
use crate::nn::{Mask, PackedAttention};
use crate::params::{ParamSpec, ParamStore, Scope};
use crate::tape::{Policy, Slot, Tape};

/// Sequences of a micro-batch, end to end.
pub(in crate::model) struct Sequences {
    /// The row among all tokens of each row, `[R]`.
    pub rows: Rc<Tensor>,
    /// Entries of the table of positions, `[R]`.
    pub places: Tensor,
    pub attention: PackedAttention,
}

/// The encoder on its parameters.
pub(in crate::model) struct Encoder {
    positions: Part<Positions>,
    layers: Vec<(Part<Attention>, Part<FeedForward>)>,
}

impl Sequences {
    /// Returns sequences of `rows` that end at `cu_seqlens` `[0, …, R]`; positions restart with each.
    pub fn new(rows: &[i64], cu_seqlens: &[usize], mask: Mask, device: Device) -> Sequences {
        let lens = cu_seqlens.windows(2).map(|ends| (ends[1] - ends[0]) as i64);
        let places: Vec<i64> = lens.flat_map(|len| OFFSET..OFFSET + len).collect();
        let index = |rows: &[i64]| Tensor::from_slice(rows).to_device(device);
        let attention = PackedAttention::new(cu_seqlens, mask, device);
        Sequences { rows: Rc::new(index(rows)), places: index(&places), attention }
    }
}

impl Encoder {
    /// Declares the encoder's positions and layers by the names of `BartEncoder`.
    pub fn specs(config: &BartConfig) -> Vec<ParamSpec> {
        let prefix = config.encoder_prefix();
        let mut specs = Positions::specs(config, &prefix);
        for number in 0..config.encoder.num_layers {
            let prefix = format!("{prefix}layers.{number}.");
            specs.extend(Attention::specs(config, &prefix, Attends::ToItself));
            specs.extend(FeedForward::specs(config, &prefix, config.encoder.mlp_dim));
        }
        specs
    }

    /// Panics where the store lacks one of the parameters.
    pub fn new(config: &BartConfig, params: &ParamStore) -> Encoder {
        let prefix = config.encoder_prefix();
        let layer = |number: i64| {
            let prefix = format!("{prefix}layers.{number}.");
            let attention = |scope: &Scope<'_>| Attention::new(scope, Attends::ToItself, config.encoder.num_heads);
            let mlp = |scope: &Scope<'_>| FeedForward::new(scope, config.activation);
            (Part::new(params, prefix.as_str(), attention), Part::new(params, prefix, mlp))
        };
        Encoder {
            positions: Part::new(params, prefix.as_str(), Positions::new),
            layers: (0..config.encoder.num_layers).map(layer).collect(),
        }
    }

    /// Records the states `[R, D]` of sequences of rows `x` `[T, D]`, of which `take` takes rows.
    pub fn record(
        &self,
        tape: &mut Tape,
        policy: Policy,
        x: Slot,
        sequences: &Rc<Sequences>,
        take: fn(&Tensor, &Tensor) -> Tensor,
    ) -> Slot {
        let (part, at) = (self.positions.part.clone(), sequences.clone());
        let forward = move |reads: &[Tensor]| vec![part.forward(&take(&reads[0], &at.rows), &at.places)];
        let mut x = tape.run("positions of language", &self.positions.ids, policy, &[x], 1, forward)[0];
        for (number, (attention, mlp)) in self.layers.iter().enumerate() {
            let (part, at) = (attention.part.clone(), sequences.clone());
            let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0], &at.attention)];
            x = tape.run(format!("language {number} attention"), &attention.ids, policy, &[x], 1, forward)[0];
            let part = mlp.part.clone();
            let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0])];
            x = tape.run(format!("language {number} mlp"), &mlp.ids, policy, &[x], 1, forward)[0];
        }
        x
    }

    /// Works like [`Encoder::record`] without a tape: tokens `[T, D]` to rows `[R, D]`, where `take` gives the rows of a tensor at
    /// indices `[R]`, int64.
    pub fn forward(&self, x_TD: &Tensor, sequences: &Sequences, take: fn(&Tensor, &Tensor) -> Tensor) -> Tensor {
        let x_RD = self.positions.part.forward(&take(x_TD, &sequences.rows), &sequences.places);
        self.layers
            .iter()
            .fold(x_RD, |x_RD, (attention, mlp)| mlp.part.forward(&attention.part.forward(&x_RD, &sequences.attention)))
    }
}
