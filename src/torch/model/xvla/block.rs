//! A block of the transformer, whose norms are before its branches.
//!
//! Shapes: R rows of all sequences, D width, H heads.

use tch::Tensor;

use super::config::{EPS, XvlaConfig, starting, xavier};
use crate::model::tower_blocks::Part;
use crate::nn::{Activation, LayerNorm, Linear, PackedAttention};
use crate::params::{ParamSpec, ParamStore};

/// The attention of a block.
pub(super) struct Attention {
    norm: LayerNorm,
    qkv: Linear,
    proj: Linear,
    num_heads: i64,
}

/// The feed-forward of a block.
pub(super) struct FeedForward {
    norm: LayerNorm,
    maps: [Linear; 2],
}

/// A block on its parameters.
pub(super) struct Block {
    pub attention: Part<Attention>,
    pub mlp: Part<FeedForward>,
}

/// Returns a linear map that starts as the reference's.
pub(super) fn linear_specs(prefix: &str, name: &str, inputs: i64, outputs: i64) -> Vec<ParamSpec> {
    starting(Linear::specs(prefix, name, inputs, outputs, true, 0.0), xavier(inputs, outputs))
}

/// Returns the parameters of a block.
pub(super) fn specs(config: &XvlaConfig, number: i64) -> Vec<ParamSpec> {
    let (prefix, width) = (config.block_prefix(number), config.width);
    let mut specs = LayerNorm::specs(&prefix, "norm1", width);
    let qkv = linear_specs(&prefix, "attn.qkv", width, 3 * width);
    specs.extend(qkv.into_iter().map(|spec| spec.in_sections(0, &[width; 3])));
    specs.extend(linear_specs(&prefix, "attn.proj", width, width));
    specs.extend(LayerNorm::specs(&prefix, "norm2", width));
    specs.extend(linear_specs(&prefix, "mlp.fc1", width, config.mlp_dim));
    specs.extend(linear_specs(&prefix, "mlp.fc2", config.mlp_dim, width));
    config.of_transformer(specs)
}

impl Block {
    /// Panics where the store lacks one of the parameters.
    pub fn new(config: &XvlaConfig, number: i64, params: &ParamStore) -> Block {
        let prefix = config.block_prefix(number);
        Block {
            attention: Part::new(params, prefix.as_str(), |scope| Attention {
                norm: LayerNorm::new(scope, "norm1", EPS),
                qkv: Linear::new(scope, "attn.qkv"),
                proj: Linear::new(scope, "attn.proj"),
                num_heads: config.num_heads,
            }),
            mlp: Part::new(params, prefix.as_str(), |scope| FeedForward {
                norm: LayerNorm::new(scope, "norm2", EPS),
                maps: ["mlp.fc1", "mlp.fc2"].map(|name| Linear::new(scope, name)),
            }),
        }
    }
}

impl Attention {
    /// Maps `[R, D]` to the branch `[R, D]`.
    pub fn forward(&self, x_RD: &Tensor, sequences: &PackedAttention) -> Tensor {
        let qkv = self.qkv.forward(&self.norm.forward(x_RD)).unflatten(-1, [3, self.num_heads, -1]);
        let [q, k, v] = [0, 1, 2].map(|at| qkv.select(1, at));
        self.proj.forward(&sequences.forward(&q, &k, &v))
    }
}

impl FeedForward {
    /// Maps `[R, D]` to the branch `[R, D]`.
    pub fn forward(&self, x_RD: &Tensor) -> Tensor {
        let [up, down] = &self.maps;
        down.forward(&Activation::GeluTanh.forward(&up.forward(&self.norm.forward(x_RD))))
    }
}
