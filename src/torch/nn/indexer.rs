//! The lightning indexer of DeepSeek sparse attention (`DeepseekV32Indexer`, `GlmMoeDsaIndexer`): a few narrow heads that score every
//! earlier key for every query. The attention by these scores is in `sparse_attention.rs`, and the indexer's loss is in
//! `indexer_loss.rs`: the choice has no gradient.
//!
//! Shapes: T tokens, D hidden size, R width of the query latent, I heads, C their width.

use tch::{Kind, Tensor};

use super::sparse_attention::IndexRows;
use super::{LayerNorm, Linear, Rope, RopeLayout};
use crate::params::{ParamSpec, Role, Scope};

/// `index_n_heads`, `index_head_dim` and `index_topk` of the config.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexerConfig {
    pub num_heads: i64,
    pub head_dim: i64,
    /// The number of keys that a query attends to.
    pub topk: i64,
    /// The layout of its own pairs: half-split in DeepSeek-V3.2, interleaved in GLM-5.
    pub layout: RopeLayout,
    pub training: IndexerTraining,
}

/// Says how the indexer learns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IndexerTraining {
    /// The indexer does not learn.
    #[default]
    Frozen,
    /// The indexer learns from the attention to the keys that it chose.
    Sparse,
    /// Warm-up: it chooses nothing, and learns from the attention to all keys.
    Dense,
}

impl IndexerConfig {
    /// Returns the most keys that a query attends to.
    pub fn num_keys(&self) -> i64 {
        if self.training == IndexerTraining::Dense { i64::MAX } else { self.topk }
    }
}

/// `k_norm`'s, whatever the decoder's is.
const EPS: f64 = 1e-6;

/// The indexer on its parameters.
pub struct Indexer {
    q: Linear,
    k: Linear,
    k_norm: LayerNorm,
    weights: Linear,
    config: IndexerConfig,
}

impl Indexer {
    /// `latent`: the width of the query latent.
    pub fn specs(prefix: &str, width: i64, latent: i64, config: &IndexerConfig, std: f64) -> Vec<ParamSpec> {
        let IndexerConfig { num_heads, head_dim, .. } = *config;
        let mut specs = Linear::specs(prefix, "wq_b", latent, num_heads * head_dim, false, std);
        specs.extend(Linear::specs(prefix, "wk", width, head_dim, false, std));
        specs.extend(LayerNorm::specs(prefix, "k_norm", head_dim));
        specs.extend(Linear::specs(prefix, "weights_proj", width, num_heads, false, std));
        let role = if config.training == IndexerTraining::Frozen { Role::Frozen } else { Role::Trained };
        specs.into_iter().map(|spec| spec.with_role(role)).collect()
    }

    /// Takes parameters under `prefix`.
    pub fn new(scope: &Scope<'_>, prefix: &str, config: &IndexerConfig) -> Indexer {
        let linear = |name: &str| Linear::new(scope, &format!("{prefix}{name}"));
        Indexer {
            q: linear("wq_b"),
            k: linear("wk"),
            k_norm: LayerNorm::new(scope, &format!("{prefix}k_norm"), EPS),
            weights: linear("weights_proj"),
            config: config.clone(),
        }
    }

    /// Returns the config that the indexer was built from.
    pub fn config(&self) -> &IndexerConfig {
        &self.config
    }

    /// Returns the rows of hidden states `x_TD` and query latents `q_TR`, both cut off from their graphs.
    /// `x_TD` `[T, D]`, `q_TR` `[T, R]`.
    pub fn rows(&self, x_TD: &Tensor, q_TR: &Tensor, rope: &Rope) -> IndexRows {
        let (x_TD, q_TR) = (x_TD.detach(), q_TR.detach());
        let IndexerConfig { num_heads, head_dim, layout, .. } = self.config;
        let turned = |x: &Tensor| rope.apply_as(x, layout);
        let scale = ((num_heads * head_dim) as f64).powf(-0.5);
        IndexRows {
            q_TIC: turned(&self.q.forward(&q_TR).unflatten(-1, [num_heads, head_dim])),
            k_TC: turned(&self.k_norm.forward(&self.k.forward(&x_TD)).unsqueeze(1)).squeeze_dim(1),
            w_TI: self.weights.forward(&x_TD).to_kind(Kind::Float) * scale,
        }
    }
}
