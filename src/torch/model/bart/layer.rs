//! The parts of BART: the table of tokens, positions, and the branches of a layer, each with its residual and the norm behind it.
//!
//! Shapes: T tokens, R rows of all sequences, S rows that the encoder has made, D width, H heads, C width of a head.

use tch::Tensor;

use super::config::{BartConfig, EPS};
use crate::native::embedding;
use crate::nn::{Activation, CrossAttention, LayerNorm, Linear, PackedAttention};
use crate::params::{Init, ParamSpec, Scope};

const POSITIONS: &str = "embed_positions.weight";
const FIRST_NORM: &str = "layernorm_embedding";
const MAPS: [&str; 4] = ["q_proj", "k_proj", "v_proj", "out_proj"];
const MLP: [&str; 2] = ["fc1", "fc2"];
const MLP_NORM: &str = "final_layer_norm";
/// Positions that the table has before the first.
pub(super) const OFFSET: i64 = 2;

/// The kind of an attention, by which its parameters are named.
#[derive(Clone, Copy)]
pub(super) enum Attends {
    ToItself,
    ToEncoder,
}

/// The table of tokens.
pub(in crate::model) struct Tokens {
    table: Tensor,
    pad_token: i64,
    image_token: Option<i64>,
    scale: f64,
}

/// Positions, and the norm behind them.
pub(super) struct Positions {
    table: Tensor,
    norm: LayerNorm,
}

/// An attention with its residual and norm.
pub(super) struct Attention {
    maps: [Linear; 4],
    norm: LayerNorm,
    num_heads: i64,
}

/// The feed-forward of a layer with its residual and norm.
pub(super) struct FeedForward {
    maps: [Linear; 2],
    norm: LayerNorm,
    activation: Activation,
}

impl Attends {
    fn names(self) -> [&'static str; 2] {
        match self {
            Attends::ToItself => ["self_attn", "self_attn_layer_norm"],
            Attends::ToEncoder => ["encoder_attn", "encoder_attn_layer_norm"],
        }
    }
}

impl Tokens {
    /// Returns the table `[V, D]` that the store has as `name`, in which the entries of `image_token` are not looked up.
    pub fn new(config: &BartConfig, scope: &Scope<'_>, name: &str, image_token: Option<i64>) -> Tokens {
        Tokens { table: scope.take(name), pad_token: config.pad_token, image_token, scale: config.scale }
    }

    /// Returns the parameter of the table.
    pub fn spec(config: &BartConfig, name: &str) -> ParamSpec {
        let name = format!("{}{name}", config.prefix);
        ParamSpec::new(name, &[config.vocab_size, config.width], Init::Normal(config.std))
    }

    /// Maps ids `[T]`, int64, to rows `[T, D]`; those that features replace have any values.
    pub fn look_up(&self, ids: &Tensor) -> Tensor {
        let known = self.image_token.map(|image| ids.masked_fill(&ids.eq(image), self.pad_token));
        let rows = embedding(&self.table, known.as_ref().unwrap_or(ids), self.pad_token);
        if self.scale == 1.0 { rows } else { rows * self.scale }
    }

    /// Returns the table `[V, D]`.
    pub fn table(&self) -> &Tensor {
        &self.table
    }
}

impl Positions {
    /// Declares the table of positions `[max_positions + 2, D]`, two rows more than there are positions as in BART, and the
    /// norm behind it.
    pub fn specs(config: &BartConfig, prefix: &str) -> Vec<ParamSpec> {
        let shape = [config.max_positions + OFFSET, config.width];
        let mut specs = vec![ParamSpec::new(format!("{prefix}{POSITIONS}"), &shape, Init::Normal(config.std))];
        specs.extend(LayerNorm::specs(prefix, FIRST_NORM, config.width));
        specs
    }

    /// Takes the table and the norm.
    pub fn new(scope: &Scope<'_>) -> Positions {
        Positions { table: scope.take(POSITIONS), norm: LayerNorm::new(scope, FIRST_NORM, EPS) }
    }

    /// Returns the norm of rows `[R, D]` to which the entries `places` `[R]` of the table are added.
    pub fn forward(&self, x_RD: &Tensor, places: &Tensor) -> Tensor {
        self.norm.forward(&(x_RD + embedding(&self.table, places, -1)))
    }
}

impl Attention {
    /// Declares maps of queries, keys, values and outputs `[D, D]` with biases, and the norm behind the residual.
    pub fn specs(config: &BartConfig, prefix: &str, attends: Attends) -> Vec<ParamSpec> {
        let ([own, norm], width) = (attends.names(), config.width);
        let map = |name: &&str| Linear::specs(prefix, &format!("{own}.{name}"), width, width, true, config.std);
        MAPS.iter().flat_map(map).chain(LayerNorm::specs(prefix, norm, width)).collect()
    }

    /// Takes the parameters that [`Attention::specs`] declares.
    pub fn new(scope: &Scope<'_>, attends: Attends, num_heads: i64) -> Attention {
        let [own, norm] = attends.names();
        Attention {
            maps: MAPS.map(|name| Linear::new(scope, &format!("{own}.{name}"))),
            norm: LayerNorm::new(scope, norm, EPS),
            num_heads,
        }
    }

    /// Maps `[R, D]` to the same.
    pub fn forward(&self, x_RD: &Tensor, sequences: &PackedAttention) -> Tensor {
        let [q, k, v] = [0, 1, 2].map(|map: usize| self.mapped(map, x_RD));
        self.behind(x_RD, &sequences.forward(&q, &k, &v))
    }

    /// Maps `[R, D]` to the same, with attention to `encoded_SD` `[S, D]`.
    pub fn forward_across(&self, x_RD: &Tensor, encoded_SD: &Tensor, crossing: &CrossAttention) -> Tensor {
        let [k, v] = self.keys_values(encoded_SD);
        self.behind(x_RD, &crossing.forward(&self.queries(x_RD), &k, &v))
    }

    /// Maps `[R, D]` to `[R, H, C]`.
    pub fn queries(&self, x_RD: &Tensor) -> Tensor {
        self.mapped(0, x_RD)
    }

    /// Returns the keys and values of `[S, D]`, `[S, H, C]` each.
    pub fn keys_values(&self, x_SD: &Tensor) -> [Tensor; 2] {
        [1, 2].map(|map| self.mapped(map, x_SD))
    }

    /// Returns the norm of rows `[R, D]` to which the output of the attention is added; `attended` is `[R, H·C]`.
    pub fn behind(&self, x_RD: &Tensor, attended: &Tensor) -> Tensor {
        self.norm.forward(&(x_RD + self.maps[3].forward(attended)))
    }

    fn mapped(&self, map: usize, x_RD: &Tensor) -> Tensor {
        self.maps[map].forward(x_RD).unflatten(-1, [self.num_heads, -1])
    }
}

impl FeedForward {
    /// Declares two maps, to `inner` and back, with biases, and the norm behind the residual.
    pub fn specs(config: &BartConfig, prefix: &str, inner: i64) -> Vec<ParamSpec> {
        let (width, std) = (config.width, config.std);
        let mut specs = Linear::specs(prefix, MLP[0], width, inner, true, std);
        specs.extend(Linear::specs(prefix, MLP[1], inner, width, true, std));
        specs.extend(LayerNorm::specs(prefix, MLP_NORM, width));
        specs
    }

    /// Takes the parameters that [`FeedForward::specs`] declares.
    pub fn new(scope: &Scope<'_>, activation: Activation) -> FeedForward {
        FeedForward {
            maps: MLP.map(|name| Linear::new(scope, name)),
            norm: LayerNorm::new(scope, MLP_NORM, EPS),
            activation,
        }
    }

    /// Maps `[R, D]` to the same.
    pub fn forward(&self, x_RD: &Tensor) -> Tensor {
        let [up, down] = &self.maps;
        self.norm.forward(&(x_RD + down.forward(&self.activation.forward(&up.forward(x_RD)))))
    }
}
