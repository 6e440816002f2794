//! BART's decoder over rows of tokens, whose layers also attend to what the encoder has made of the same sample: a micro-batch at a
//! time on a tape, or a token at a time with the keys and values of those before.
//!
//! Shapes: R rows of all answers, S rows of the encoder, B answers that are continued, D width, H heads, C width of a head.

use std::rc::Rc;

use tch::Tensor;

use super::config::{BartConfig, StackConfig};
use super::encoder::Sequences;
use super::layer::{Attends, Attention, FeedForward, OFFSET, Positions};
use crate::model::tower_blocks::Part;
use crate::nn::CrossAttention;
use crate::params::{ParamSpec, ParamStore, Scope};
use crate::tape::{Policy, Slot, Tape};

/// The decoder on its parameters.
pub(super) struct Decoder {
    positions: Part<Positions>,
    layers: Vec<Layer>,
}

struct Layer {
    attention: Part<Attention>,
    across: Part<Attention>,
    mlp: Part<FeedForward>,
}

/// The keys and values that a layer keeps, of the tokens before and of the encoder's states.
pub(super) struct LayerCache {
    /// `[B, H, tokens, C]` each; `None` before the first.
    own: Option<[Tensor; 2]>,
    /// `[S, H, C]` each.
    encoded: [Tensor; 2],
}

impl Decoder {
    /// Declares the decoder's positions and layers, each with attention to itself, attention to the encoder, and a
    /// feed-forward, by the names of `BartDecoder`.
    pub fn specs(config: &BartConfig, stack: &StackConfig) -> Vec<ParamSpec> {
        let prefix = config.decoder_prefix();
        let mut specs = Positions::specs(config, &prefix);
        for number in 0..stack.num_layers {
            let prefix = format!("{prefix}layers.{number}.");
            specs.extend(Attention::specs(config, &prefix, Attends::ToItself));
            specs.extend(Attention::specs(config, &prefix, Attends::ToEncoder));
            specs.extend(FeedForward::specs(config, &prefix, stack.mlp_dim));
        }
        specs
    }

    /// Panics where the store lacks one of the parameters.
    pub fn new(config: &BartConfig, stack: &StackConfig, params: &ParamStore) -> Decoder {
        let prefix = config.decoder_prefix();
        let layer = |number: i64| {
            let prefix = format!("{prefix}layers.{number}.");
            let attention = |attends| {
                Part::new(params, prefix.as_str(), |scope: &Scope<'_>| Attention::new(scope, attends, stack.num_heads))
            };
            Layer {
                attention: attention(Attends::ToItself),
                across: attention(Attends::ToEncoder),
                mlp: Part::new(params, prefix.as_str(), |scope| FeedForward::new(scope, config.activation)),
            }
        };
        Decoder {
            positions: Part::new(params, prefix.as_str(), Positions::new),
            layers: (0..stack.num_layers).map(layer).collect(),
        }
    }

    /// Records the states `[R, D]` of answers of rows `x` `[R, D]`, which attend to `encoded` `[S, D]`.
    pub fn record(
        &self,
        tape: &mut Tape,
        policy: Policy,
        [x, encoded]: [Slot; 2],
        answers: &Rc<Sequences>,
        crossing: &Rc<CrossAttention>,
    ) -> Slot {
        let (part, at) = (self.positions.part.clone(), answers.clone());
        let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0], &at.places)];
        let mut x = tape.run("positions of answers", &self.positions.ids, policy, &[x], 1, forward)[0];
        for (number, Layer { attention, across, mlp }) in self.layers.iter().enumerate() {
            let (part, at) = (attention.part.clone(), answers.clone());
            let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0], &at.attention)];
            x = tape.run(format!("answer {number} attention"), &attention.ids, policy, &[x], 1, forward)[0];
            let (part, at) = (across.part.clone(), crossing.clone());
            let forward = move |reads: &[Tensor]| vec![part.forward_across(&reads[0], &reads[1], &at)];
            x = tape.run(format!("answer {number} cross attention"), &across.ids, policy, &[x, encoded], 1, forward)[0];
            let part = mlp.part.clone();
            let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0])];
            x = tape.run(format!("answer {number} mlp"), &mlp.ids, policy, &[x], 1, forward)[0];
        }
        x
    }

    /// Returns the caches of the layers before the first token, for the encoder's states `[S, D]`.
    pub fn begin(&self, encoded_SD: &Tensor) -> Vec<LayerCache> {
        let cache = |layer: &Layer| LayerCache { own: None, encoded: layer.across.part.keys_values(encoded_SD) };
        self.layers.iter().map(cache).collect()
    }

    /// Returns the states `[B, D]` of the token at `position` of each answer, of rows `[B, D]`; the tokens before are in `caches`.
    pub fn step(&self, x_BD: &Tensor, position: i64, crossing: &CrossAttention, caches: &mut [LayerCache]) -> Tensor {
        let places = Tensor::full([x_BD.size()[0]], OFFSET + position, (tch::Kind::Int64, x_BD.device()));
        let mut x = self.positions.part.forward(x_BD, &places);
        for (Layer { attention, across, mlp }, cache) in self.layers.iter().zip(caches) {
            let added = attention.part.keys_values(&x).map(|added| added.unsqueeze(2));
            let own = match cache.own.take() {
                None => added,
                Some([keys, values]) => [Tensor::cat(&[&keys, &added[0]], 2), Tensor::cat(&[&values, &added[1]], 2)],
            };
            let queries = attention.part.queries(&x).unsqueeze(2);
            let none = None::<Tensor>;
            let attended =
                Tensor::scaled_dot_product_attention(&queries, &own[0], &own[1], none, 0.0, false, None, false);
            cache.own = Some(own);
            x = attention.part.behind(&x, &attended.squeeze_dim(2).flatten(1, 2));
            let [keys, values] = &cache.encoded;
            let attended = crossing.forward(&across.part.queries(&x), keys, values);
            x = mlp.part.forward(&across.part.behind(&x, &attended));
        }
        x
    }
}
