//! A block of Qwen-Image: two streams, pictures and text, with weights of their own and one attention over both.
//!
//! Shapes: T tokens of pictures, K rows of text, R rows of modulations, D width, C head size.

use tch::Tensor;

use super::config::QwenImageConfig;
use crate::model::dit::maps::{map, outer_map, zeroed};
use crate::model::dit::segments::Segments;
use crate::model::tower_blocks::Rotation;
use crate::nn::{Activation, Linear, PackedAttention, RmsNorm, take_rows};
use crate::params::{ParamSpec, Scope};

/// The epsilon of all norms.
pub(super) const EPS: f64 = 1e-6;

/// What all blocks read of a micro-batch beside their hidden states.
pub(super) struct Context {
    pub pictures: Segments,
    pub text: Segments,
    /// For each row of the attention its row among those of text and, behind them, pictures; and the inverse. `None`: that
    /// is the order.
    pub order: Option<[Tensor; 2]>,
    /// Turns rows of the attention.
    pub rotation: Rotation,
    /// A sample's rows, text before pictures, attend to each other.
    pub samples: PackedAttention,
    /// Rows of text.
    pub num_text: i64,
}

/// A stream's part of the attention.
struct Heads {
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    norm_q: RmsNorm,
    norm_k: RmsNorm,
}

pub(super) struct Attention {
    pictures: Heads,
    text: Heads,
    head_dim: i64,
}

/// The feed-forward of a stream.
pub(super) struct FeedForward {
    up: Linear,
    down: Linear,
}

/// The names of a stream's maps and norms in the attention.
const PICTURES: [&str; 6] = ["to_q", "to_k", "to_v", "to_out.0", "norm_q", "norm_k"];
const TEXT: [&str; 6] = ["add_q_proj", "add_k_proj", "add_v_proj", "to_add_out", "norm_added_q", "norm_added_k"];

/// The parameters of a block, of this rank's part of it. Modulations start at nothing, and so do the branches that they gate.
pub(super) fn specs(config: &QwenImageConfig, prefix: &str) -> Vec<ParamSpec> {
    let width = config.width();
    let [heads, inner] = config.local_widths();
    let mut specs = Vec::new();
    for [q, k, v, o, norm_q, norm_k] in [PICTURES, TEXT] {
        let name = |name: &str| format!("attn.{name}");
        specs.extend([q, k, v].iter().flat_map(|of| map(prefix, &name(of), width, heads)));
        specs.extend(map(prefix, &name(o), heads, width));
        specs.extend([norm_q, norm_k].iter().flat_map(|of| RmsNorm::specs(prefix, &name(of), config.head_dim)));
    }
    for stream in ["img", "txt"] {
        specs.extend(zeroed(outer_map(prefix, &format!("{stream}_mod.1"), width, 6 * width)));
        specs.extend(map(prefix, &format!("{stream}_mlp.net.0.proj"), width, inner));
        specs.extend(map(prefix, &format!("{stream}_mlp.net.2"), inner, width));
    }
    specs
}

impl Heads {
    fn new(scope: &Scope<'_>, names: [&str; 6]) -> Heads {
        let [q, k, v, o] = [0, 1, 2, 3].map(|at: usize| Linear::new(scope, &format!("attn.{}", names[at])));
        let [norm_q, norm_k] = [4, 5].map(|at: usize| RmsNorm::new(scope, &format!("attn.{}", names[at]), EPS));
        Heads { q, k, v, o, norm_q, norm_k }
    }

    /// Queries, keys and values of heads `[rows, H, C]`.
    fn project(&self, x: &Tensor, head_dim: i64) -> [Tensor; 3] {
        let [q, k, v] = [&self.q, &self.k, &self.v].map(|map| map.forward(x).unflatten(-1, [-1, head_dim]));
        [self.norm_q.forward_heads(&q), self.norm_k.forward_heads(&k), v]
    }
}

impl Attention {
    pub fn new(scope: &Scope<'_>, config: &QwenImageConfig) -> Attention {
        let [pictures, text] = [PICTURES, TEXT].map(|names| Heads::new(scope, names));
        Attention { pictures, text, head_dim: config.head_dim }
    }

    /// Pictures `[T, D]` and text `[K, D]`, with their modulations `[R, 6, D]` each, to the gated branches; that of text only
    /// where `with_text`.
    pub fn forward(
        &self,
        [x, text]: [&Tensor; 2],
        [of_pictures, of_text]: [&Tensor; 2],
        context: &Context,
        with_text: bool,
    ) -> Vec<Tensor> {
        let x = context.pictures.modulate(x, &of_pictures.select(1, 0), &of_pictures.select(1, 1), EPS);
        let text = context.text.modulate(text, &of_text.select(1, 0), &of_text.select(1, 1), EPS);
        let (pictures, text) = (self.pictures.project(&x, self.head_dim), self.text.project(&text, self.head_dim));
        let joint = |which: usize| {
            let both = Tensor::cat(&[&text[which], &pictures[which]], 0);
            context.order.as_ref().map_or(both.shallow_clone(), |[rows, _]| take(&both, rows))
        };
        let turned = |x: &Tensor| context.rotation.apply(x);
        let y = context.samples.forward(&turned(&joint(0)), &turned(&joint(1)), &joint(2));
        let y = context.order.as_ref().map_or(y.shallow_clone(), |[_, places]| take_rows(&y, places));
        let parts = y.split_with_sizes([context.num_text, y.size()[0] - context.num_text], 0);
        let y = context.pictures.gate(&self.pictures.o.forward(&parts[1]), &of_pictures.select(1, 2));
        match with_text {
            true => vec![y, context.text.gate(&self.text.o.forward(&parts[0]), &of_text.select(1, 2))],
            false => vec![y],
        }
    }
}

impl FeedForward {
    pub fn new(scope: &Scope<'_>, stream: &str) -> FeedForward {
        FeedForward {
            up: Linear::new(scope, &format!("{stream}_mlp.net.0.proj")),
            down: Linear::new(scope, &format!("{stream}_mlp.net.2")),
        }
    }

    /// Rows `[rows, D]` of a stream and its modulations to the gated branch.
    pub fn forward(&self, x: &Tensor, modulations: &Tensor, segments: &Segments) -> Tensor {
        let x = segments.modulate(x, &modulations.select(1, 3), &modulations.select(1, 4), EPS);
        let y = self.down.forward(&Activation::GeluTanh.forward(&self.up.forward(&x)));
        segments.gate(&y, &modulations.select(1, 5))
    }
}

/// Rows of `x` `[rows, H, C]`.
fn take(x: &Tensor, rows: &Tensor) -> Tensor {
    let size = x.size();
    take_rows(&x.flatten(1, -1), rows).view([-1, size[1], size[2]])
}
