//! BART's encoder over rows that features and tokens have made.
//!
//! Shapes: T tokens, R rows of all sequences, D width, H heads.

use tch::Tensor;

use super::config::{BartConfig, EPS, XvlaConfig};
use crate::model::tower_blocks::Part;
use crate::native::embedding;
use crate::nn::{Activation, LayerNorm, Linear, PackedAttention};
use crate::params::{Init, ParamSpec, ParamStore, Scope, StoredTensor};

const TABLE: &str = "embed_tokens.weight";
const POSITIONS: &str = "embed_positions.weight";
const FIRST_NORM: &str = "layernorm_embedding";
const QKV: [&str; 3] = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
const OUT: &str = "self_attn.out_proj";
const ATTENTION_NORM: &str = "self_attn_layer_norm";
const MLP: [&str; 2] = ["fc1", "fc2"];
const MLP_NORM: &str = "final_layer_norm";
/// Positions that the table has before the first.
pub(super) const OFFSET: i64 = 2;

/// The table of tokens.
pub(super) struct Tokens {
    table: Tensor,
    pad_token: i64,
    image_token: i64,
    scale: f64,
}

/// Positions, and the norm behind them.
pub(super) struct Positions {
    table: Tensor,
    norm: LayerNorm,
}

/// The attention of a layer with its residual and norm.
pub(super) struct Attention {
    qkv: [Linear; 3],
    out: Linear,
    norm: LayerNorm,
    num_heads: i64,
}

/// The feed-forward of a layer with its residual and norm.
pub(super) struct FeedForward {
    maps: [Linear; 2],
    norm: LayerNorm,
    activation: Activation,
}

/// The encoder on its parameters.
pub(super) struct Language {
    pub tokens: Part<Tokens>,
    pub positions: Part<Positions>,
    pub layers: Vec<(Part<Attention>, Part<FeedForward>)>,
}

fn layer_prefix(config: &XvlaConfig, number: i64) -> String {
    format!("{}layers.{number}.", config.language_prefix())
}

/// The encoder's parameters.
pub(super) fn specs(config: &XvlaConfig) -> Vec<ParamSpec> {
    let prefix = config.language_prefix();
    let BartConfig { vocab_size, width, mlp_dim, max_positions, std, .. } = config.language;
    let table = ParamSpec::new(format!("{prefix}{TABLE}"), &[vocab_size, width], Init::Normal(std));
    // The reference stores the table twice, or once under either name.
    let shared = StoredTensor::repeated(&format!("{}vlm.language_model.shared.weight", config.prefix), &table.shape);
    let pieces = [table.pieces.clone(), vec![shared]].concat();
    let positions = [max_positions + OFFSET, width];
    let mut specs =
        vec![table.stored_as(pieces), ParamSpec::new(format!("{prefix}{POSITIONS}"), &positions, Init::Normal(std))];
    specs.extend(LayerNorm::specs(&prefix, FIRST_NORM, width));
    for number in 0..config.language.num_layers {
        let prefix = layer_prefix(config, number);
        let linear = |name: &str, inputs, outputs| Linear::specs(&prefix, name, inputs, outputs, true, std);
        QKV.into_iter().chain([OUT]).for_each(|name| specs.extend(linear(name, width, width)));
        specs.extend(LayerNorm::specs(&prefix, ATTENTION_NORM, width));
        specs.extend(linear(MLP[0], width, mlp_dim));
        specs.extend(linear(MLP[1], mlp_dim, width));
        specs.extend(LayerNorm::specs(&prefix, MLP_NORM, width));
    }
    config.of_language(specs)
}

impl Language {
    /// Panics where the store lacks one of the parameters.
    pub fn new(config: &XvlaConfig, params: &ParamStore) -> Language {
        let (prefix, own) = (config.language_prefix(), &config.language);
        let norm = |scope: &Scope<'_>, name: &str| LayerNorm::new(scope, name, EPS);
        let tokens = |scope: &Scope<'_>| Tokens {
            table: scope.take(TABLE),
            pad_token: own.pad_token,
            image_token: config.image_token,
            scale: own.scale,
        };
        let layer = |number| {
            let prefix = layer_prefix(config, number);
            let attention = |scope: &Scope<'_>| Attention {
                qkv: QKV.map(|name| Linear::new(scope, name)),
                out: Linear::new(scope, OUT),
                norm: norm(scope, ATTENTION_NORM),
                num_heads: own.num_heads,
            };
            let mlp = |scope: &Scope<'_>| FeedForward {
                maps: MLP.map(|name| Linear::new(scope, name)),
                norm: norm(scope, MLP_NORM),
                activation: own.activation,
            };
            (Part::new(params, prefix.as_str(), attention), Part::new(params, prefix, mlp))
        };
        Language {
            tokens: Part::new(params, prefix.as_str(), tokens),
            positions: Part::new(params, prefix.as_str(), |scope| Positions {
                table: scope.take(POSITIONS),
                norm: norm(scope, FIRST_NORM),
            }),
            layers: (0..own.num_layers).map(layer).collect(),
        }
    }
}

impl Tokens {
    /// Ids `[T]`, int64, to rows `[T, D]`; those that features replace have any values.
    pub fn look_up(&self, ids: &Tensor) -> Tensor {
        let known = ids.masked_fill(&ids.eq(self.image_token), self.pad_token);
        let rows = embedding(&self.table, &known, self.pad_token);
        if self.scale == 1.0 { rows } else { rows * self.scale }
    }
}

impl Positions {
    /// Rows `[R, D]` with the entries `places` `[R]` of the table.
    pub fn forward(&self, x_RD: &Tensor, places: &Tensor) -> Tensor {
        self.norm.forward(&(x_RD + embedding(&self.table, places, -1)))
    }
}

impl Attention {
    /// `[R, D]` to the same.
    pub fn forward(&self, x_RD: &Tensor, sequences: &PackedAttention) -> Tensor {
        let [q, k, v] = self.qkv.each_ref().map(|map| map.forward(x_RD).unflatten(-1, [self.num_heads, -1]));
        self.norm.forward(&(x_RD + self.out.forward(&sequences.forward(&q, &k, &v))))
    }
}

impl FeedForward {
    /// `[R, D]` to the same.
    pub fn forward(&self, x_RD: &Tensor) -> Tensor {
        let [up, down] = &self.maps;
        self.norm.forward(&(x_RD + down.forward(&self.activation.forward(&up.forward(x_RD)))))
    }
}
