//! Groups of tokens into entries (`DeepseekV4HCACompressor`, `DeepseekV4CSACompressor`): a mean of their vectors, weighted
//! channel by channel with a softmax over the group, then a norm.
//!
//! Where entries overlap, a token has two vectors and two gates: the first of each goes into the entry after its own, the
//! second into its own.
//!
//! Shapes: B documents, L tokens of each, W = L / r entries of r tokens, C width of an entry, E = C or 2 C.

use tch::{Kind, Tensor};

use crate::nn::Linear;
use crate::nn::norm::{NormConfig, RmsNorm};
use crate::params::{Init, ParamSpec, Scope};

/// The block on its parameters.
pub struct Compressor {
    kv: Linear,
    gate: Linear,
    /// `[r, E]`
    position_bias: Tensor,
    norm: RmsNorm,
    rate: i64,
    width: i64,
    overlaps: bool,
}

/// Vectors and gates of some tokens, `[…, E]` each.
pub struct Gated {
    pub kv: Tensor,
    pub gate: Tensor,
}

impl Compressor {
    /// Declares the parameters of entries `width` wide of `rate` tokens whose states have `inputs` channels.
    pub fn specs(prefix: &str, inputs: i64, [width, rate]: [i64; 2], overlaps: bool, std: f64) -> Vec<ParamSpec> {
        let outputs = if overlaps { 2 * width } else { width };
        let mut specs = Linear::specs(prefix, "kv_proj", inputs, outputs, false, std);
        specs.extend(Linear::specs(prefix, "gate_proj", inputs, outputs, false, std));
        specs.push(ParamSpec::new(format!("{prefix}position_bias"), &[rate, outputs], Init::Zeros));
        specs.extend(RmsNorm::specs(prefix, "kv_norm", width));
        specs
    }

    /// Takes parameters under `prefix`.
    pub fn new(scope: &Scope<'_>, prefix: &str, [width, rate]: [i64; 2], overlaps: bool, eps: f64) -> Compressor {
        let norm = NormConfig { eps, zero_centered: false };
        Compressor {
            kv: Linear::new(scope, &format!("{prefix}kv_proj")),
            gate: Linear::new(scope, &format!("{prefix}gate_proj")),
            position_bias: scope.take(&format!("{prefix}position_bias")),
            norm: norm.build(scope, &format!("{prefix}kv_norm")),
            rate,
            width,
            overlaps,
        }
    }

    /// Returns the gated values that tokens `[T, D]` give to entries.
    pub fn gated(&self, x_TD: &Tensor) -> Gated {
        Gated { kv: self.kv.forward(x_TD), gate: self.gate.forward(x_TD) }
    }

    /// Returns the entries `[B, W, C]` of documents `[B, L, E]` from their first token on, without positions.
    pub fn entries(&self, Gated { kv, gate }: &Gated) -> Tensor {
        let count = kv.size()[1] / self.rate;
        if count == 0 {
            return kv.narrow(1, 0, 0).narrow(2, 0, self.width);
        }
        let groups = |x: &Tensor| x.narrow(1, 0, count * self.rate).unflatten(1, [count, self.rate]);
        let (kv, gate) = (groups(kv), groups(gate) + &self.position_bias);
        if !self.overlaps {
            return self.mean(&kv, &gate);
        }
        let (first, own) =
            (|x: &Tensor| x.narrow(-1, 0, self.width), |x: &Tensor| x.narrow(-1, self.width, self.width));
        let before = |x: &Tensor, fill: f64| {
            let x = first(x);
            Tensor::cat(&[x.narrow(1, 0, 1).full_like(fill), x.narrow(1, 0, count - 1)], 1)
        };
        let kv = Tensor::cat(&[before(&kv, 0.0), own(&kv)], 2);
        let gate = Tensor::cat(&[before(&gate, f64::NEG_INFINITY), own(&gate)], 2);
        self.mean(&kv, &gate)
    }

    /// Returns the number of tokens that the last entry of a sequence is made of.
    pub fn reach(&self) -> i64 {
        if self.overlaps { 2 * self.rate } else { self.rate }
    }

    /// Returns the entry `[B, C]` that ends with the last of `reach` tokens `[B, reach, E]`. Where `first_B`, it is the sequence's first.
    pub fn last_entry(&self, Gated { kv, gate }: &Gated, first_B: &Tensor) -> Tensor {
        let bias = self.position_bias.to_kind(gate.kind());
        if !self.overlaps {
            return self.mean(&kv.unsqueeze(1), &(gate + bias).unsqueeze(1)).squeeze_dim(1);
        }
        let halves = |x: &Tensor| {
            let part = |half: i64| x.narrow(1, half * self.rate, self.rate).narrow(2, half * self.width, self.width);
            [part(0), part(1)]
        };
        let [before, own] = halves(&(gate + bias.repeat([2, 1])));
        let before = before.masked_fill(&first_B.view([-1, 1, 1]), f64::NEG_INFINITY);
        let (kv, gate) = (Tensor::cat(&halves(kv), 1), Tensor::cat(&[before, own], 1));
        self.mean(&kv.unsqueeze(1), &gate.unsqueeze(1)).squeeze_dim(1)
    }

    /// Returns the normed means `[B, W, C]` of groups `[B, W, tokens, C]`.
    fn mean(&self, kv: &Tensor, gate: &Tensor) -> Tensor {
        let weights = gate.softmax(2, Kind::Float).to_kind(kv.kind());
        self.norm.forward(&(kv * weights).sum_dim_intlist([2i64].as_slice(), false, kv.kind()))
    }
}
