//! The indexer of compressed sparse attention (`DeepseekV4Indexer`): narrow heads that score narrow entries of their own
//! for every query. The best entries are chosen; the choice has no gradient, and nothing here trains.
//!
//! Shapes: T tokens, B documents, Q queries, I heads, C their width, W entries.

use tch::{Kind, Tensor};

use super::compressor::{Compressor, Gated};
use super::config::EntryIndexer;
use super::turn::turn_last;
use crate::nn::sparse_attention::{MAX_SCORES, best, head_scores};
use crate::nn::{Linear, Rope};
use crate::params::{ParamSpec, Role, Scope};

/// The block on its parameters.
pub(super) struct EntryChooser {
    pub compressor: Compressor,
    q: Linear,
    weights: Linear,
    config: EntryIndexer,
}

/// The queries of the heads of some tokens, the weights of these, and what the tokens give to entries.
pub(super) struct IndexTokens {
    /// `[T, I, C]`
    pub q: Tensor,
    /// `[T, I]`, float32, the scale of scores included.
    pub weights: Tensor,
    pub gated: Gated,
}

impl EntryChooser {
    /// `latent`: the width of the query latent.
    pub fn specs(prefix: &str, width: i64, latent: i64, config: &EntryIndexer, rate: i64, std: f64) -> Vec<ParamSpec> {
        let EntryIndexer { num_heads, head_dim, .. } = *config;
        let mut specs = Compressor::specs(prefix, width, [head_dim, rate], true, std);
        specs.extend(Linear::specs(prefix, "q_b_proj", latent, num_heads * head_dim, false, std));
        specs.extend(Linear::specs(prefix, "scorer.weights_proj", width, num_heads, false, std));
        specs.into_iter().map(|spec| spec.with_role(Role::Frozen)).collect()
    }

    /// Takes parameters under `prefix`.
    pub fn new(scope: &Scope<'_>, prefix: &str, config: &EntryIndexer, rate: i64, eps: f64) -> EntryChooser {
        let linear = |name: &str| Linear::new(scope, &format!("{prefix}{name}"));
        EntryChooser {
            compressor: Compressor::new(scope, prefix, [config.head_dim, rate], true, eps),
            q: linear("q_b_proj"),
            weights: linear("scorer.weights_proj"),
            config: config.clone(),
        }
    }

    /// Returns the width of its entries.
    pub fn head_dim(&self) -> i64 {
        self.config.head_dim
    }

    /// Returns the queries, weights and gated values of tokens, from hidden states `x_TD` and query latents `q_TR`. Run it without
    /// gradients. `x_TD` `[T, D]`, `q_TR` `[T, R]`.
    pub fn tokens(&self, x_TD: &Tensor, q_TR: &Tensor, rope: &Rope) -> IndexTokens {
        let EntryIndexer { num_heads, head_dim, .. } = self.config;
        let scale = ((num_heads * head_dim) as f64).powf(-0.5);
        IndexTokens {
            q: turn_last(&self.q.forward(q_TR).unflatten(-1, [num_heads, head_dim]), rope),
            weights: self.weights.forward(x_TD).to_kind(Kind::Float) * scale,
            gated: self.compressor.gated(x_TD),
        }
    }

    /// Returns which of the entries `[B, W, C]` the queries `[B, Q, I, C]` see, `[B, Q, W]`, bool: the best of the `visible` ones, which
    /// may be `[1, Q, W]`; all of these where they are few enough.
    pub fn choose(&self, q: &Tensor, weights: &Tensor, entries: &Tensor, visible: &Tensor) -> Tensor {
        let (count, topk) = (entries.size()[1], self.config.topk);
        if count <= topk {
            return visible.shallow_clone();
        }
        let (docs, queries, heads) = (q.size()[0], q.size()[1], q.size()[2]);
        let step = (MAX_SCORES / (docs * heads * count)).clamp(1, queries);
        let part = |first: i64| {
            let of = |x: &Tensor| x.narrow(1, first, step.min(queries - first));
            let visible = of(visible);
            let scores = head_scores(&of(q), entries, &of(weights));
            best(&scores.masked_fill(&visible.logical_not(), f64::NEG_INFINITY), topk).logical_and(&visible)
        };
        Tensor::cat(&(0..queries).step_by(step as usize).map(part).collect::<Vec<_>>(), 1)
    }
}
