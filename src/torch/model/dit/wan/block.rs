//! A block of Wan: self-attention and feed-forward, modulated by noise levels, and between them cross-attention to the prompt
//! and to pictures.
//!
//! Shapes: T tokens of a latent, R rows of modulations, K rows of text and I of pictures, D width, H heads, C head size.

use tch::Tensor;

use super::config::WanConfig;
use crate::model::dit::maps::{map, zeroed};
use crate::model::dit::segments::{Segments, wide};
use crate::model::tower_blocks::Rotation;
use crate::nn::{Activation, CrossAttention, LayerNorm, Linear, PackedAttention, RmsNorm};
use crate::params::{Init, ParamSpec, Scope};

/// The table of a block, which is added to the modulations of noise levels: `[1, 6, D]`.
const TABLE: &str = "scale_shift_table";

/// What all blocks read of a micro-batch beside their hidden states.
pub(super) struct Context {
    pub segments: Segments,
    pub rotation: Rotation,
    /// Tokens of a clip attend to each other.
    pub clips: PackedAttention,
    pub prompts: CrossAttention,
    /// `None` without pictures.
    pub pictures: Option<CrossAttention>,
}

/// Queries, keys and values of heads; queries and keys have a norm over all heads together.
struct Heads {
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    norm_q: RmsNorm,
    norm_k: RmsNorm,
    head_dim: i64,
}

pub(super) struct SelfAttention {
    table: Tensor,
    heads: Heads,
    eps: f64,
}

pub(super) struct PromptAttention {
    norm: Option<LayerNorm>,
    heads: Heads,
    /// Keys and values of pictures.
    pictures: Option<(Linear, Linear, RmsNorm)>,
}

pub(super) struct FeedForward {
    table: Tensor,
    up: Linear,
    down: Linear,
    eps: f64,
}

impl Heads {
    fn specs(prefix: &str, width: i64) -> Vec<ParamSpec> {
        let maps = ["to_q", "to_k", "to_v", "to_out.0"].iter().flat_map(|name| map(prefix, name, width, width));
        maps.chain(["norm_q", "norm_k"].iter().flat_map(|name| RmsNorm::specs(prefix, name, width))).collect()
    }

    fn new(scope: &Scope<'_>, name: &str, config: &WanConfig) -> Heads {
        let linear = |of: &str| Linear::new(scope, &format!("{name}.{of}"));
        let norm = |of: &str| RmsNorm::new(scope, &format!("{name}.{of}"), config.eps);
        Heads {
            q: linear("to_q"),
            k: linear("to_k"),
            v: linear("to_v"),
            o: linear("to_out.0"),
            norm_q: norm("norm_q"),
            norm_k: norm("norm_k"),
            head_dim: config.head_dim,
        }
    }

    fn by_head(&self, x: &Tensor) -> Tensor {
        x.unflatten(-1, [-1, self.head_dim])
    }

    fn queries(&self, x: &Tensor) -> Tensor {
        self.by_head(&self.norm_q.forward(&self.q.forward(x)))
    }

    fn keys_values(&self, x: &Tensor) -> [Tensor; 2] {
        [self.by_head(&self.norm_k.forward(&self.k.forward(x))), self.by_head(&self.v.forward(x))]
    }
}

impl SelfAttention {
    pub fn new(scope: &Scope<'_>, config: &WanConfig) -> SelfAttention {
        SelfAttention { table: scope.take(TABLE), heads: Heads::new(scope, "attn1", config), eps: config.eps }
    }

    /// `x` `[T, D]` and the modulations of noise levels `[R, 6, D]` to the gated branch `[T, D]`.
    pub fn forward(&self, x: &Tensor, modulations: &Tensor, context: &Context) -> Tensor {
        let [shift, scale, gate] = three(modulations, &self.table, 0);
        let x = context.segments.modulate(x, &shift, &scale, self.eps);
        let (q, [k, v]) = (self.heads.queries(&x), self.heads.keys_values(&x));
        let turned = |x: &Tensor| context.rotation.apply(x);
        let y = self.heads.o.forward(&context.clips.forward(&turned(&q), &turned(&k), &v));
        context.segments.gate(&y, &gate)
    }
}

impl PromptAttention {
    pub fn new(scope: &Scope<'_>, config: &WanConfig) -> PromptAttention {
        let pictures = || {
            let linear = |of: &str| Linear::new(scope, &format!("attn2.{of}"));
            (linear("add_k_proj"), linear("add_v_proj"), RmsNorm::new(scope, "attn2.norm_added_k", config.eps))
        };
        PromptAttention {
            norm: config.cross_norm.then(|| LayerNorm::new(scope, "norm2", config.eps)),
            heads: Heads::new(scope, "attn2", config),
            pictures: config.image.is_some().then(pictures),
        }
    }

    /// `x` `[T, D]`, `text` `[K, D]` and `pictures` `[I, D]` to the branch `[T, D]`.
    pub fn forward(&self, x: &Tensor, text: &Tensor, pictures: Option<&Tensor>, context: &Context) -> Tensor {
        let normed = self.norm.as_ref().map_or_else(|| x.shallow_clone(), |norm| norm.forward_wide(x));
        let (q, [k, v]) = (self.heads.queries(&normed), self.heads.keys_values(text));
        let mut y = context.prompts.forward(&q, &k, &v);
        if let (Some((keys, values, norm)), Some(pictures), Some(met)) = (&self.pictures, pictures, &context.pictures) {
            let k = self.heads.by_head(&norm.forward(&keys.forward(pictures)));
            y = y + met.forward(&q, &k, &self.heads.by_head(&values.forward(pictures)));
        }
        self.heads.o.forward(&y)
    }
}

impl FeedForward {
    pub fn new(scope: &Scope<'_>, config: &WanConfig) -> FeedForward {
        FeedForward {
            table: scope.take(TABLE),
            up: Linear::new(scope, "ffn.net.0.proj"),
            down: Linear::new(scope, "ffn.net.2"),
            eps: config.eps,
        }
    }

    /// As [`SelfAttention::forward`].
    pub fn forward(&self, x: &Tensor, modulations: &Tensor, context: &Context) -> Tensor {
        let [shift, scale, gate] = three(modulations, &self.table, 3);
        let x = context.segments.modulate(x, &shift, &scale, self.eps);
        let y = self.down.forward(&Activation::GeluTanh.forward(&self.up.forward(&x)));
        context.segments.gate(&y, &gate)
    }
}

/// The parameters of a block. Branches that are modulated start at nothing.
pub(super) fn specs(config: &WanConfig, prefix: &str) -> Vec<ParamSpec> {
    let (width, inner) = (config.width(), config.inner);
    let mut specs =
        vec![ParamSpec::new(format!("{prefix}{TABLE}"), &[1, 6, width], Init::Normal((width as f64).powf(-0.5)))];
    let mut attention = Heads::specs(&format!("{prefix}attn1."), width);
    attention.iter_mut().filter(|spec| spec.name.ends_with("to_out.0.weight")).for_each(|spec| spec.init = Init::Zeros);
    specs.extend(attention);
    specs.extend(Heads::specs(&format!("{prefix}attn2."), width));
    if config.image.is_some() {
        let added = ["attn2.add_k_proj", "attn2.add_v_proj"];
        specs.extend(added.into_iter().flat_map(|name| map(prefix, name, width, width)));
        specs.extend(RmsNorm::specs(prefix, "attn2.norm_added_k", width));
    }
    if config.cross_norm {
        specs.extend(LayerNorm::specs(prefix, "norm2", width));
    }
    specs.extend(map(prefix, "ffn.net.0.proj", width, inner));
    specs.extend(zeroed(map(prefix, "ffn.net.2", inner, width)));
    specs
}

/// Shift, scale and gate of modulations `[R, 6, D]` and a block's table: the three rows from `first` on, `[R, D]` each.
fn three(modulations: &Tensor, table: &Tensor, first: i64) -> [Tensor; 3] {
    let sum = wide(modulations) + wide(table);
    [0, 1, 2].map(|row| sum.select(1, first + row))
}
