//! T5's encoder on its parameters, and how it is recorded.
//!
//! Shapes: S tokens of all texts, D width of a state, H heads, C head size.

use std::rc::Rc;

use tch::{Device, Kind, Tensor};

use super::relative::RelativeAttention;
use super::t5::{ATTENTION, ATTENTION_NORM, EMBEDDING, FINAL_NORM, MLP, MLP_NORM, T5Config};
use crate::model::tower_blocks::{Part, beside};
use crate::nn::{Activation, Linear, RmsNorm};
use crate::params::{ParamId, ParamStore, Scope};
use crate::tape::{Policy, Slot, Tape};

/// The encoder of a config, up to a layer.
pub(super) struct T5Tower {
    config: T5Config,
    embedding: Part<Tensor>,
    blocks: Vec<(Part<Attention>, Part<Mlp>)>,
    /// `None` where the last states are not wanted.
    norm: Option<Part<RmsNorm>>,
    device: Device,
}

struct Attention {
    norm: RmsNorm,
    qkv: [Linear; 3],
    o: Linear,
    num_heads: i64,
    /// Biases by distance and head.
    table: Tensor,
}

struct Mlp {
    norm: RmsNorm,
    ups: Vec<Linear>,
    down: Linear,
    activation: Activation,
}

impl T5Tower {
    /// Panics where the store was not made from this config's `specs` for as many layers.
    pub fn new(config: &T5Config, num_layers: usize, with_norm: bool, params: &ParamStore) -> T5Tower {
        let block = |number: usize| {
            let (prefix, table) = (config.layer_prefix(number), params.id(&config.biases(number)));
            let mut attention =
                Part::new(params, prefix.as_str(), |scope| Attention::new(scope, config, params, table));
            attention.ids.push(table);
            (attention, Part::new(params, prefix, |scope| Mlp::new(scope, config)))
        };
        let prefix = config.prefix.as_str();
        T5Tower {
            embedding: Part::new(params, prefix, |scope| scope.take(&format!("{EMBEDDING}.weight"))),
            blocks: (0..num_layers).map(block).collect(),
            norm: with_norm.then(|| Part::new(params, prefix, |scope| RmsNorm::new(scope, FINAL_NORM, config.eps))),
            device: params.flat().device(),
            config: config.clone(),
        }
    }

    /// Records texts that end at `ends` `[0, …, S]`; `ids` is `[S, 1]`. Returns the states `[S, D]` after the embedding and
    /// after each layer; the last behind the norm, where there is one.
    pub fn record(&self, tape: &mut Tape, ends: &[usize], ids: Slot, policy: Policy) -> Vec<Slot> {
        let texts = RelativeAttention::new(ends, self.config.buckets, self.device);
        let table = self.embedding.part.clone();
        let look_up = move |reads: &[Tensor]| {
            vec![Tensor::embedding(&table, &reads[0].flatten(0, -1).to_kind(Kind::Int64), -1, false, false)]
        };
        // What is not in a layer all ranks compute alike.
        let is_split = self.config.parallel.tp > 1;
        tape.set_alike(is_split);
        let mut x = tape.run("embed", &self.embedding.ids, policy, &[ids], 1, look_up)[0];
        tape.set_alike(false);
        let mut states = vec![x];
        for (number, (attention, mlp)) in self.blocks.iter().enumerate() {
            let (branch, texts) = (attention.part.clone(), texts.clone());
            let forward = move |reads: &[Tensor]| vec![branch.forward(&reads[0], &texts)];
            x = beside(tape, x, is_split, |tape, x| {
                tape.run(format!("block {number} attention"), &attention.ids, policy, &[x], 1, forward)[0]
            });
            let branch = mlp.part.clone();
            let forward = move |reads: &[Tensor]| vec![branch.forward(&reads[0])];
            x = beside(tape, x, is_split, |tape, x| {
                tape.run(format!("block {number} mlp"), &mlp.ids, policy, &[x], 1, forward)[0]
            });
            states.push(x);
        }
        if let Some(norm) = &self.norm {
            tape.set_alike(is_split);
            let part: Rc<RmsNorm> = norm.part.clone();
            let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0])];
            *states.last_mut().expect("the embeddings") = tape.run("norm", &norm.ids, policy, &[x], 1, forward)[0];
        }
        states
    }
}

impl Attention {
    fn new(scope: &Scope<'_>, config: &T5Config, params: &ParamStore, table: ParamId) -> Attention {
        Attention {
            norm: RmsNorm::new(scope, ATTENTION_NORM, config.eps),
            qkv: ["q", "k", "v"].map(|name| Linear::new(scope, &format!("{ATTENTION}.{name}"))),
            o: Linear::new(scope, &format!("{ATTENTION}.o")),
            num_heads: config.num_heads,
            table: params.leaf(table).shallow_clone(),
        }
    }

    /// Maps `[S, D]` to `[S, D]`.
    fn forward(&self, x_SD: &Tensor, texts: &RelativeAttention) -> Tensor {
        let normed = self.norm.forward(x_SD);
        let [q, k, v] = self.qkv.each_ref().map(|map| map.forward(&normed).unflatten(-1, [self.num_heads, -1]));
        self.o.forward(&texts.forward([&q, &k, &v], &self.table))
    }
}

impl Mlp {
    fn new(scope: &Scope<'_>, config: &T5Config) -> Mlp {
        Mlp {
            norm: RmsNorm::new(scope, MLP_NORM, config.eps),
            ups: config.ups().iter().map(|name| Linear::new(scope, &format!("{MLP}.{name}"))).collect(),
            down: Linear::new(scope, &format!("{MLP}.wo")),
            activation: config.activation,
        }
    }

    /// Maps `[S, D]` to `[S, D]`.
    fn forward(&self, x_SD: &Tensor) -> Tensor {
        let normed = self.norm.forward(x_SD);
        self.down.forward(&match self.ups.as_slice() {
            [gate, up] => self.activation.gated(&gate.forward(&normed), &up.forward(&normed)),
            [up, ..] => self.activation.forward(&up.forward(&normed)),
            [] => unreachable!("an MLP has a map"),
        })
    }
}
