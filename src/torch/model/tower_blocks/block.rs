//! A pre-norm transformer block of a tower: attention among the rows of an item, such as the patches of a picture or the
//! positions of a clip, then an MLP, each with the config's names. The residual is the tape's.
//!
//! Shapes: S rows of a tower's sequence, D hidden size, H heads, C head size.

use tch::Tensor;

use super::norm::{Norm, TowerNorm};
use super::rope::Rotation;
use crate::model::parallel_errors::TensorParallelError;
use crate::nn::{Activation, Linear, PackedAttention};
use crate::params::{Init, ParallelRank, ParamSpec, Scope};

/// A block. Names are relative to the block's prefix.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockConfig {
    pub width: i64,
    /// The number of heads of the whole block.
    pub num_heads: i64,
    /// Width inside of the MLP; of the part that is held here.
    pub inner: i64,
    /// The rank whose part of a block this is.
    pub parallel: ParallelRank,
    pub norm: TowerNorm,
    /// The names of the norms before the attention and before the MLP.
    pub norms: [&'static str; 2],
    /// One name where the checkpoint has queries, keys and values as one matrix, else three.
    pub qkv: Vec<&'static str>,
    pub qkv_bias: bool,
    /// False where keys alone have no bias (Whisper); they have a matrix of their own then.
    pub k_bias: bool,
    pub o: &'static str,
    /// Names and epsilon of the norms of queries and keys, over all heads together (InternViT-6B).
    pub qk_norm: Option<([&'static str; 2], f64)>,
    pub mlp: MlpNames,
    pub activation: Activation,
    /// Names of what the branches are multiplied by, and where it starts (Touvron et al. 2021, LayerScale).
    pub scales: Option<([&'static str; 2], f64)>,
    pub initializer_range: f64,
}

/// The linear maps of an MLP, all with biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlpNames {
    /// `down(act(up(x)))`.
    Plain([&'static str; 2]),
    /// Gate, up and down: `down(act(gate(x)) · up(x))`.
    Gated([&'static str; 3]),
    /// The same with gate and up as one matrix, the gate's rows first.
    Joint([&'static str; 2]),
}

/// The attention branch.
pub(in crate::model) struct Attention {
    norm: Norm,
    qkv: Vec<Linear>,
    qk_norm: Option<[Norm; 2]>,
    o: Linear,
    scale: Option<Tensor>,
    head_dim: i64,
}

/// The MLP branch.
pub(in crate::model) struct Mlp {
    norm: Norm,
    /// One, or gate and up.
    up: Vec<Linear>,
    /// True if the one is gate and up.
    is_joint: bool,
    down: Linear,
    activation: Activation,
    scale: Option<Tensor>,
}

impl BlockConfig {
    /// Returns the block that most towers have: queries, keys and values in one matrix with biases, a plain MLP, and these names.
    pub(in crate::model) fn new(
        width: i64,
        num_heads: i64,
        inner: i64,
        norm: TowerNorm,
        initializer_range: f64,
    ) -> BlockConfig {
        BlockConfig {
            width,
            num_heads,
            inner,
            parallel: ParallelRank::default(),
            norm,
            norms: ["norm1", "norm2"],
            qkv: vec!["attn.qkv"],
            qkv_bias: true,
            k_bias: true,
            o: "attn.proj",
            qk_norm: None,
            mlp: MlpNames::Plain(["mlp.fc1", "mlp.fc2"]),
            activation: Activation::Gelu,
            scales: None,
            initializer_range,
        }
    }

    /// Returns the width of a head, C.
    pub(in crate::model) fn head_dim(&self) -> i64 {
        self.width / self.num_heads
    }

    /// Returns the part of the block that the rank at `place` computes; `key` is the config's for the number of heads.
    ///
    /// # Errors
    /// It cannot be split into as many parts.
    pub(in crate::model) fn divided(
        &self,
        place: &ParallelRank,
        key: &'static str,
    ) -> Result<BlockConfig, TensorParallelError> {
        let (size, ranks) = (self.num_heads, place.tp);
        if size % ranks as i64 != 0 {
            return Err(TensorParallelError::Tensor { key, size, ranks });
        }
        if self.qk_norm.is_some() && ranks > 1 {
            return Err(TensorParallelError::Unsupported { what: "norms over all heads of a tower together" });
        }
        let inner = place.part(self.inner);
        Ok(BlockConfig { inner: inner.end - inner.start, parallel: *place, ..self.clone() })
    }

    /// Declares the parameters of a block under `prefix`, those of this rank's heads and of its part of the MLP.
    pub(in crate::model) fn specs(&self, prefix: &str) -> Vec<ParamSpec> {
        let (width, std) = (self.width, self.initializer_range);
        let heads = width / self.parallel.tp as i64;
        let mut specs: Vec<ParamSpec> =
            self.norms.iter().flat_map(|name| self.norm.specs(prefix, name, width)).collect();
        let each = 3 * heads / self.qkv.len() as i64;
        for (which, name) in self.qkv.iter().enumerate() {
            let bias = self.qkv_bias && (which != 1 || self.k_bias);
            let linear = Linear::specs(prefix, name, width, each, bias, std).into_iter();
            let joint = self.qkv.len() == 1;
            specs.extend(linear.map(|spec| if joint { spec.in_sections(0, &[heads; 3]) } else { spec }));
        }
        if let Some((names, eps)) = self.qk_norm {
            specs.extend(names.iter().flat_map(|name| TowerNorm::Rms(eps).specs(prefix, name, width)));
        }
        specs.extend(Linear::specs(prefix, self.o, heads, width, true, std));
        let (ups, down) = self.mlp.split();
        for name in ups {
            let joint = self.mlp.is_joint();
            let linear = Linear::specs(prefix, name, width, if joint { 2 * self.inner } else { self.inner }, true, std);
            let in_halves = |spec: ParamSpec| if joint { spec.in_sections(0, &[self.inner; 2]) } else { spec };
            specs.extend(linear.into_iter().map(in_halves));
        }
        specs.extend(Linear::specs(prefix, down, self.inner, width, true, std));
        if let Some((names, start)) = self.scales {
            let scale = |name| ParamSpec::new(format!("{prefix}{name}"), &[width], Init::Constant(start));
            specs.extend(names.iter().map(scale));
        }
        specs
    }

    /// Returns the parameters of the attention branch alone.
    pub(in crate::model) fn attention_specs(&self, prefix: &str) -> Vec<ParamSpec> {
        let (ups, down) = self.mlp.split();
        let of_mlp: Vec<String> =
            ups.iter().chain([&down, &self.norms[1]]).map(|name| format!("{prefix}{name}.")).collect();
        let is_other = |spec: &ParamSpec| of_mlp.iter().any(|other| spec.name.starts_with(other));
        self.specs(prefix).into_iter().filter(|spec| !is_other(spec)).collect()
    }

    /// Takes the parameters of the attention branch: its norm, queries, keys and values in one map or three, and the map of the
    /// output.
    pub(in crate::model) fn attention(&self, scope: &Scope<'_>) -> Attention {
        Attention {
            norm: self.norm.build(scope, self.norms[0]),
            qkv: self.qkv.iter().map(|name| Linear::new(scope, name)).collect(),
            qk_norm: self.qk_norm.map(|(names, eps)| names.map(|name| TowerNorm::Rms(eps).build(scope, name))),
            o: Linear::new(scope, self.o),
            scale: self.scales.map(|(names, _)| scope.take(names[0])),
            head_dim: self.head_dim(),
        }
    }

    /// Takes the parameters of the MLP branch.
    pub(in crate::model) fn mlp(&self, scope: &Scope<'_>) -> Mlp {
        let (ups, down) = self.mlp.split();
        Mlp {
            norm: self.norm.build(scope, self.norms[1]),
            up: ups.iter().map(|name| Linear::new(scope, name)).collect(),
            is_joint: self.mlp.is_joint(),
            down: Linear::new(scope, down),
            activation: self.activation,
            scale: self.scales.map(|(names, _)| scope.take(names[1])),
        }
    }
}

impl MlpNames {
    fn split(&self) -> (&[&'static str], &'static str) {
        match self {
            MlpNames::Plain([up, down]) | MlpNames::Joint([up, down]) => (std::slice::from_ref(up), down),
            MlpNames::Gated([ups @ .., down]) => (ups, down),
        }
    }

    fn is_joint(&self) -> bool {
        matches!(self, MlpNames::Joint(_))
    }
}

impl Attention {
    /// Maps `[S, D]` to `[S, D]`. `documents` says which rows attend to each other.
    pub fn forward(&self, x_SD: &Tensor, turn: Option<&Rotation>, documents: &PackedAttention) -> Tensor {
        let normed = self.norm.forward(x_SD);
        let mut heads: Vec<Tensor> = match self.qkv.as_slice() {
            [joint] => joint.forward(&normed).unflatten(-1, [3, -1]).unbind(1),
            separate => separate.iter().map(|linear| linear.forward(&normed)).collect(),
        };
        if let Some(norms) = &self.qk_norm {
            for (head, norm) in heads.iter_mut().zip(norms) {
                *head = norm.forward(&head.contiguous());
            }
        }
        let [q, k, v] = [0, 1, 2].map(|which| heads[which].unflatten(-1, [-1, self.head_dim]));
        let turned = |x: &Tensor| turn.map_or_else(|| x.shallow_clone(), |turn| turn.apply(x));
        scaled(self.o.forward(&documents.forward(&turned(&q), &turned(&k), &v)), self.scale.as_ref())
    }
}

impl Mlp {
    /// Maps `[S, D]` to `[S, D]`.
    pub fn forward(&self, x_SD: &Tensor) -> Tensor {
        let normed = self.norm.forward(x_SD);
        let inner = match self.up.as_slice() {
            [gate, up] => self.activation.gated(&gate.forward(&normed), &up.forward(&normed)),
            [both] if self.is_joint => {
                let halves = both.forward(&normed).chunk(2, -1);
                self.activation.gated(&halves[0], &halves[1])
            }
            [up, ..] => self.activation.forward(&up.forward(&normed)),
            [] => unreachable!("an MLP has a map"),
        };
        scaled(self.down.forward(&inner), self.scale.as_ref())
    }
}

fn scaled(branch: Tensor, scale: Option<&Tensor>) -> Tensor {
    match scale {
        Some(scale) => branch * scale,
        None => branch,
    }
}
