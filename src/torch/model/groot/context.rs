//! The states that actions see: those of tokens behind a norm and a transformer of their own (`vlln`, `vl_self_attention`).
//!
//! Shapes: T tokens of all samples, D their width.

use tch::Tensor;

use super::block::{Attend, BlockKind, EPS, FeedForward, specs as block_specs};
use super::config::{GrootConfig, of_part};
use super::layout::Layout;
use crate::model::tower_blocks::Part;
use crate::nn::LayerNorm;
use crate::params::{ParamSpec, ParamStore};

const NORM: &str = "vlln";

/// The norm and the layers on their parameters.
pub(super) struct ContextParts {
    pub norm: Option<Part<LayerNorm>>,
    pub layers: Vec<ContextLayer>,
}

/// A layer: its attention and its feed-forward.
pub(super) struct ContextLayer {
    pub attend: Part<Attend>,
    pub feed_forward: Part<FeedForward>,
}

fn kind(config: &GrootConfig) -> BlockKind {
    BlockKind { adaptive: false, keys: config.context.width() }
}

fn layer_prefix(config: &GrootConfig, number: i64) -> String {
    format!("{}vl_self_attention.transformer_blocks.{number}.", config.head_prefix())
}

/// Returns the parameters of the norm and the layers.
pub(super) fn specs(config: &GrootConfig) -> Vec<ParamSpec> {
    let mut specs = Vec::new();
    if config.norm {
        specs.extend(LayerNorm::specs(&config.head_prefix(), NORM, config.backbone.hidden_size));
    }
    for number in 0..config.context.num_layers {
        specs.extend(block_specs(&layer_prefix(config, number), &config.context, kind(config)));
    }
    of_part(config.tuned.vlln, specs)
}

impl ContextParts {
    /// Panics where the store lacks one of the parameters.
    pub fn new(config: &GrootConfig, params: &ParamStore) -> ContextParts {
        let layer = |number: i64| {
            let prefix = layer_prefix(config, number);
            let (sizes, kind, at) = (&config.context, kind(config), number as u64);
            ContextLayer {
                attend: Part::new(params, prefix.as_str(), |scope| Attend::new(scope, sizes, kind, at)),
                feed_forward: Part::new(params, prefix, |scope| FeedForward::new(scope, sizes, kind, at)),
            }
        };
        ContextParts {
            norm: config
                .norm
                .then(|| Part::new(params, config.head_prefix(), |scope| LayerNorm::new(scope, NORM, EPS))),
            layers: (0..config.context.num_layers).map(layer).collect(),
        }
    }
}

impl ContextLayer {
    /// Maps rows of tokens `[T, D]` to the attention branch.
    pub fn attended(attend: &Attend, x: &Tensor, at: &Layout) -> Tensor {
        attend.forward(x, None, None, |[q, k, v]| at.tokens.forward(&q, &k, &v), &at.dropout[0])
    }
}
