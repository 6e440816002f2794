//! A layer of diffusers' transformers (`BasicTransformerBlock` of the reference): attention and a feed-forward, each behind a norm and
//! beside a residual.
//!
//! Shapes: R rows, D width, S draws of all samples, H heads, C width of a head.

use tch::{Kind, Tensor};

use super::config::{TransformerSizes, torch_std};
use crate::nn::{Activation, Dropout, LayerNorm, Linear};
use crate::params::{ParamSpec, Scope};

/// The epsilon of all norms but the last.
pub(super) const EPS: f64 = 1e-5;
const HEADS: [&str; 3] = ["attn1.to_q", "attn1.to_k", "attn1.to_v"];
const OUT: &str = "attn1.to_out.0";
const MLP: [&str; 2] = ["ff.net.0.proj", "ff.net.2"];
/// A feed-forward is so many times as wide.
const EXPANSION: i64 = 4;
/// Sites of dropout are numbered within a layer; each layer of a policy has its own range.
pub(super) const SITES: u64 = 1 << 32;

/// The differences between a layer of actions and one of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockKind {
    /// Scale and shift of the norm before attention are maps of a condition, and no norm has weights of its own.
    pub adaptive: bool,
    /// The width of what its keys and values are maps of.
    pub keys: i64,
}

/// A norm before a branch.
enum Norm {
    Plain(LayerNorm),
    Adaptive(Linear),
    /// A norm without weights.
    Bare,
}

/// The attention of a layer.
pub(super) struct Attend {
    norm: Norm,
    q: Linear,
    keys: [Linear; 2],
    out: Linear,
    sizes: TransformerSizes,
    site: u64,
}

/// The feed-forward of a layer.
pub(super) struct FeedForward {
    norm: Norm,
    maps: [Linear; 2],
    sizes: TransformerSizes,
    site: u64,
}

/// Returns the parameters of a layer whose names begin with `prefix`.
pub(super) fn specs(prefix: &str, sizes: &TransformerSizes, kind: BlockKind) -> Vec<ParamSpec> {
    let (width, inner) = (sizes.width(), EXPANSION * sizes.width());
    let map =
        |name: &str, inputs: i64, outputs: i64| Linear::specs(prefix, name, inputs, outputs, true, torch_std(inputs));
    let [q, k, v] = HEADS;
    let mut specs = match kind.adaptive {
        // A modulation, which has no adapter.
        true => map("norm1.linear", width, 2 * width).into_iter().map(modulation).collect(),
        false => LayerNorm::specs(prefix, "norm1", width),
    };
    let maps = [(q, width, width), (k, kind.keys, width), (v, kind.keys, width), (OUT, width, width)];
    specs.extend(maps.into_iter().flat_map(|(name, inputs, outputs)| map(name, inputs, outputs)));
    if !kind.adaptive {
        specs.extend(LayerNorm::specs(prefix, "norm3", width));
    }
    specs.extend([map(MLP[0], width, inner), map(MLP[1], inner, width)].concat());
    specs
}

fn modulation(spec: ParamSpec) -> ParamSpec {
    ParamSpec { is_modulation: spec.is_linear, is_linear: false, ..spec }
}

/// Returns the norm of rows without weights, in float32.
pub(super) fn bare(x: &Tensor, eps: f64) -> Tensor {
    let kind = if x.kind() == Kind::Double { Kind::Double } else { Kind::Float };
    x.to_kind(kind).layer_norm([x.size()[1]], None::<&Tensor>, None::<&Tensor>, eps, false)
}

/// Returns the rows `[R, D]` of S groups, times one plus their group's scale, plus its shift, `[S, D]` each.
pub(super) fn modulated(x: &Tensor, scale: &Tensor, shift: &Tensor) -> Tensor {
    let grouped = x.unflatten(0, [scale.size()[0], -1]);
    shift.unsqueeze(1).addcmul(&grouped, &(scale.unsqueeze(1) + 1.0)).flatten(0, 1)
}

impl Norm {
    /// `condition` `[S, D]`, float32, where the norm goes by one.
    fn forward(&self, x: &Tensor, condition: Option<&Tensor>) -> Tensor {
        match self {
            Norm::Plain(norm) => norm.forward_wide(x),
            Norm::Bare => bare(x, EPS).to_kind(x.kind()),
            Norm::Adaptive(map) => {
                let parts = map.forward_wide(condition.expect("an adaptive norm has a condition")).chunk(2, 1);
                modulated(&bare(x, EPS), &parts[0], &parts[1]).to_kind(x.kind())
            }
        }
    }
}

impl Attend {
    /// Takes the attention of a block: queries, keys and values, which may be of other rows, and the norm before it. `number`:
    /// of the block, which tells its dropout from others'.
    pub fn new(scope: &Scope<'_>, sizes: &TransformerSizes, kind: BlockKind, number: u64) -> Attend {
        let norm = match kind.adaptive {
            true => Norm::Adaptive(Linear::new(scope, "norm1.linear")),
            false => Norm::Plain(LayerNorm::new(scope, "norm1", EPS)),
        };
        let [q, k, v] = HEADS.map(|name| Linear::new(scope, name));
        Attend { norm, q, keys: [k, v], out: Linear::new(scope, OUT), sizes: *sizes, site: number * SITES }
    }

    /// Maps rows `[R, D]` to the branch. Queries, keys and values `[…, H, C]` go through `attend`; keys are made of `seen`, or of the
    /// rows themselves.
    pub fn forward(
        &self,
        x: &Tensor,
        condition: Option<&Tensor>,
        seen: Option<&Tensor>,
        attend: impl FnOnce([Tensor; 3]) -> Tensor,
        dropout: &Dropout,
    ) -> Tensor {
        let x = self.norm.forward(x, condition);
        let heads = |map: &Linear, x: &Tensor| map.forward(x).unflatten(-1, [-1, self.sizes.head_dim]);
        let [k, v] = self.keys.each_ref().map(|map| heads(map, seen.unwrap_or(&x)));
        let y = self.out.forward(&attend([heads(&self.q, &x), k, v]));
        let y = dropout.forward(y, self.sizes.dropout, self.site);
        dropout.forward(y, if self.sizes.final_dropout { self.sizes.dropout } else { 0.0 }, self.site + 1)
    }
}

impl FeedForward {
    /// Takes the feed-forward of a block and the norm before it. `number`: as of [`Attend::new`].
    pub fn new(scope: &Scope<'_>, sizes: &TransformerSizes, kind: BlockKind, number: u64) -> FeedForward {
        let norm = match kind.adaptive {
            true => Norm::Bare,
            false => Norm::Plain(LayerNorm::new(scope, "norm3", EPS)),
        };
        FeedForward { norm, maps: MLP.map(|name| Linear::new(scope, name)), sizes: *sizes, site: number * SITES + 2 }
    }

    /// Maps rows `[R, D]` to the branch.
    pub fn forward(&self, x: &Tensor, dropout: &Dropout) -> Tensor {
        let [first, second] = &self.maps;
        let inner = Activation::GeluTanh.forward(&first.forward(&self.norm.forward(x, None)));
        let y = second.forward(&dropout.forward(inner, self.sizes.dropout, self.site));
        dropout.forward(y, if self.sizes.final_dropout { self.sizes.dropout } else { 0.0 }, self.site + 1)
    }
}
