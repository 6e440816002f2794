//! The encoders of T5 (`T5EncoderModel`) and UMT5 (`UMT5EncoderModel`) as data.

use serde_json::json;

use super::relative::DistanceBuckets;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::parallel_errors::TensorParallelError;
use crate::nn::{Activation, Linear, RmsNorm};
use crate::params::{Init, ParallelRank, ParamSpec};

type Result<T> = std::result::Result<T, ModelConfigError>;

pub(super) const EMBEDDING: &str = "shared";
pub(super) const FINAL_NORM: &str = "encoder.final_layer_norm";
pub(super) const ATTENTION: &str = "layer.0.SelfAttention";
pub(super) const ATTENTION_NORM: &str = "layer.0.layer_norm";
pub(super) const MLP: &str = "layer.1.DenseReluDense";
pub(super) const MLP_NORM: &str = "layer.1.layer_norm";

/// An encoder whose attention has biases by distance in place of positions. Nothing is dropped out in training,
/// whatever `dropout_rate` says.
#[derive(Clone, Debug, PartialEq)]
pub struct T5Config {
    /// The prefix of all names.
    pub prefix: String,
    pub vocab_size: i64,
    /// Width of a state.
    pub width: i64,
    pub num_heads: i64,
    pub head_dim: i64,
    /// Width inside of the MLP.
    pub inner: i64,
    pub num_layers: usize,
    pub buckets: DistanceBuckets,
    /// The rank whose part of the layers this is; `num_heads` and `inner` are the part's.
    pub parallel: ParallelRank,
    /// True if all layers take the biases of the first (T5); else each has its own (UMT5).
    pub shares_bias: bool,
    pub activation: Activation,
    /// True if the MLP is `wo(act(wi_0(x)) · wi_1(x))`; else `wo(act(wi(x)))`.
    pub is_gated: bool,
    pub eps: f64,
    /// Multiplies the standard deviations of random weights (`initializer_factor`).
    pub init_factor: f64,
}

/// Returns the encoder of `T5Config` or `UMT5Config`, its names under `prefix`.
pub(super) fn read(keys: &Keys<'_>, prefix: &str, shares_bias: bool) -> Result<T5Config> {
    let size = |key: &str, default: i64| Ok(keys.size_or(key)?.unwrap_or(default));
    let default = if shares_bias { "relu" } else { "gated-gelu" };
    let (activation, is_gated) = match keys.text_or("feed_forward_proj")?.unwrap_or(default) {
        "relu" => (Activation::Relu, false),
        "gelu" => (Activation::Gelu, false),
        "gated-gelu" => (Activation::GeluTanh, true),
        "gated-silu" => (Activation::Silu, true),
        other => {
            let known = ["relu", "gelu", "gated-gelu", "gated-silu"].map(|name| json!(name));
            return Err(keys.unsupported("feed_forward_proj", &json!(other), &known));
        }
    };
    let buckets = DistanceBuckets {
        num_buckets: size("relative_attention_num_buckets", 32)?,
        max_distance: size("relative_attention_max_distance", 128)?,
    };
    if buckets.num_exact() < 1 || buckets.max_distance <= buckets.num_exact() {
        let must = format!("must be more than a quarter of relative_attention_num_buckets ({})", buckets.num_buckets);
        return Err(keys.inconsistent("relative_attention_max_distance", buckets.max_distance, must));
    }
    Ok(T5Config {
        prefix: prefix.to_owned(),
        vocab_size: keys.size("vocab_size")?,
        width: keys.size("d_model")?,
        num_heads: keys.size("num_heads")?,
        head_dim: size("d_kv", 64)?,
        inner: keys.size("d_ff")?,
        num_layers: keys.size("num_layers")? as usize,
        buckets,
        parallel: ParallelRank::default(),
        shares_bias,
        activation,
        is_gated,
        eps: keys.number_or("layer_norm_epsilon")?.unwrap_or(1e-6),
        init_factor: keys.number_or("initializer_factor")?.unwrap_or(1.0),
    })
}

impl T5Config {
    /// Returns the names of the maps into the MLP.
    pub(super) fn ups(&self) -> &'static [&'static str] {
        if self.is_gated { &["wi_0", "wi_1"] } else { &["wi"] }
    }

    /// Returns the part of the encoder that the rank at `place` computes.
    ///
    /// # Errors
    /// Heads or the inner width cannot be split into as many parts.
    pub(super) fn divided(&self, place: &ParallelRank) -> std::result::Result<T5Config, TensorParallelError> {
        let (ranks, heads) = (place.tp as i64, self.num_heads);
        if heads % ranks != 0 {
            return Err(TensorParallelError::Tensor { key: "text_encoder.num_heads", size: heads, ranks: place.tp });
        }
        if self.inner < ranks {
            let (key, axis) = ("text_encoder.d_ff", "tensor_parallel");
            return Err(TensorParallelError::TooFew { key, size: self.inner, axis, ranks: place.tp });
        }
        let inner = place.part(self.inner);
        let (num_heads, inner) = (heads / ranks, inner.end - inner.start);
        Ok(T5Config { num_heads, inner, parallel: *place, ..self.clone() })
    }

    /// Returns the prefix of a layer's names.
    pub(super) fn layer_prefix(&self, number: usize) -> String {
        format!("{}encoder.block.{number}.", self.prefix)
    }

    /// Returns the name of the table of biases that a layer takes.
    pub(super) fn biases(&self, number: usize) -> String {
        let number = if self.shares_bias { 0 } else { number };
        format!("{}{ATTENTION}.relative_attention_bias.weight", self.layer_prefix(number))
    }

    /// Returns the parameters of the first `num_layers` layers, under their names in the checkpoint; with the last norm or without.
    pub(super) fn specs(&self, num_layers: usize, with_norm: bool) -> Vec<ParamSpec> {
        let (width, heads, inner) = (self.width, self.num_heads * self.head_dim, self.inner);
        let std = |inputs: i64| self.init_factor * (inputs as f64).powf(-0.5);
        let table = |name: String, shape: [i64; 2], std| ParamSpec::new(name, &shape, Init::Normal(std));
        let embedding = format!("{}{EMBEDDING}.weight", self.prefix);
        let mut specs = vec![table(embedding, [self.vocab_size, width], self.init_factor)];
        for number in 0..num_layers {
            let prefix = self.layer_prefix(number);
            let linear =
                |name: String, inputs, outputs, std| Linear::specs(&prefix, &name, inputs, outputs, false, std);
            specs.extend(RmsNorm::specs(&prefix, ATTENTION_NORM, width));
            specs.extend(linear(format!("{ATTENTION}.q"), width, heads, std(width * self.head_dim)));
            specs
                .extend(["k", "v"].iter().flat_map(|it| linear(format!("{ATTENTION}.{it}"), width, heads, std(width))));
            specs.extend(linear(format!("{ATTENTION}.o"), heads, width, std(heads)));
            if number == 0 || !self.shares_bias {
                let shape = [self.buckets.num_buckets, self.num_heads];
                specs.push(table(self.biases(number), shape, std(width)));
            }
            specs.extend(RmsNorm::specs(&prefix, MLP_NORM, width));
            specs.extend(self.ups().iter().flat_map(|it| linear(format!("{MLP}.{it}"), width, inner, std(width))));
            specs.extend(linear(format!("{MLP}.wo"), inner, width, std(inner)));
        }
        if with_norm {
            specs.extend(RmsNorm::specs(&self.prefix, FINAL_NORM, width));
        }
        specs
    }
}
