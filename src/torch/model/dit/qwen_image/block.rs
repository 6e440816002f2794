//! A block of Qwen-Image: two streams, pictures and text, with weights of their own and one attention over both.
//!
//! Shapes: T tokens of pictures, K rows of text, R rows of modulations, D width, C head size.

use tch::Tensor;

use super::config::QwenImageConfig;
use crate::model::dit::maps::{map, modulation_map, zeroed};
use crate::model::dit::segments::Segments;
use crate::model::dit::share::Samples;
use crate::model::tower_blocks::Rotation;
use crate::native::{can_fuse, join_rows, split_rows};
use crate::nn::{Activation, Linear, RmsNorm, take_rows};
use crate::params::{ParamSpec, Scope};

/// The epsilon of all norms.
pub(super) const EPS: f64 = 1e-6;

/// The tables that all blocks read of a micro-batch beside their hidden states.
pub(super) struct Context {
    pub pictures: Segments,
    pub text: Segments,
    /// The row among those of text and, behind them, pictures of each row of the attention; and the inverse. `None`: they are in that
    /// order.
    pub order: Option<[Tensor; 2]>,
    /// Turn rows of text and of pictures.
    pub rotations: [Rotation; 2],
    /// A sample's rows, text before pictures, attend to each other.
    pub samples: Samples,
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

/// Returns the parameters of a block, of this rank's part of it. Modulations start at nothing, and so do the branches that they gate.
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
        specs.extend(zeroed(modulation_map(prefix, &format!("{stream}_mod.1"), width, 6 * width)));
        specs.extend(map(prefix, &format!("{stream}_mlp.net.0.proj"), width, inner));
        specs.extend(map(prefix, &format!("{stream}_mlp.net.2"), inner, width));
    }
    specs
}

impl Context {
    /// Returns the rows of text and of pictures `[rows, H, C]` as those of the attention.
    fn join(&self, text: &Tensor, pictures: &Tensor) -> Tensor {
        let Some([rows, _]) = &self.order else { return Tensor::cat(&[text, pictures], 0) };
        if can_fuse(text) {
            return join_rows(text, pictures, rows);
        }
        let size = text.size();
        take_rows(&Tensor::cat(&[text, pictures], 0).flatten(1, -1), rows).view([-1, size[1], size[2]])
    }

    /// Returns the rows of the attention `[rows, H·C]` as those of text and of pictures.
    fn split(&self, y: &Tensor) -> [Tensor; 2] {
        let y = match &self.order {
            Some([rows, _]) if can_fuse(y) => return split_rows(y, rows, self.num_text),
            Some([_, places]) => take_rows(y, places),
            None => y.shallow_clone(),
        };
        [y.narrow(0, 0, self.num_text), y.narrow(0, self.num_text, y.size()[0] - self.num_text)]
    }
}

impl Heads {
    fn new(scope: &Scope<'_>, names: [&str; 6]) -> Heads {
        let [q, k, v, o] = [0, 1, 2, 3].map(|at: usize| Linear::new(scope, &format!("attn.{}", names[at])));
        let [norm_q, norm_k] = [4, 5].map(|at: usize| RmsNorm::new(scope, &format!("attn.{}", names[at]), EPS));
        Heads { q, k, v, o, norm_q, norm_k }
    }

    /// Returns the queries and keys of heads, turned, and values: `[rows, H, C]`.
    fn project(&self, x: &Tensor, rotation: &Rotation, head_dim: i64) -> [Tensor; 3] {
        let [q, k, v] = [&self.q, &self.k, &self.v].map(|map| map.forward(x).unflatten(-1, [-1, head_dim]));
        [rotation.apply_normed(&self.norm_q, &q), rotation.apply_normed(&self.norm_k, &k), v]
    }
}

impl Attention {
    /// Takes the heads of both streams.
    pub fn new(scope: &Scope<'_>, config: &QwenImageConfig) -> Attention {
        let [pictures, text] = [PICTURES, TEXT].map(|names| Heads::new(scope, names));
        Attention { pictures, text, head_dim: config.head_dim }
    }

    /// Maps pictures `[T, D]` and text `[K, D]`, with their modulations `[R, 6, D]` each, to the gated branches; that of text only where
    /// `with_text`.
    pub fn forward(
        &self,
        streams: [&Tensor; 2],
        modulations: [&Tensor; 2],
        context: &Context,
        with_text: bool,
    ) -> Vec<Tensor> {
        let [q, k, v] = self.heads(streams, modulations, context);
        self.finish(&context.samples.whole().forward(&q, &k, &v), modulations, context, with_text)
    }

    /// Returns the queries and keys, turned, and values of the attention's rows: `[T + K, H, C]`.
    pub fn heads(
        &self,
        [x, text]: [&Tensor; 2],
        [of_pictures, of_text]: [&Tensor; 2],
        context: &Context,
    ) -> [Tensor; 3] {
        let x = context.pictures.modulate(x, of_pictures, 0, EPS);
        let text = context.text.modulate(text, of_text, 0, EPS);
        let [turn_text, turn_pictures] = &context.rotations;
        let pictures = self.pictures.project(&x, turn_pictures, self.head_dim);
        let text = self.text.project(&text, turn_text, self.head_dim);
        [0, 1, 2].map(|which: usize| context.join(&text[which], &pictures[which]))
    }

    /// Maps attended rows `[T + K, H·C]` to the gated branches, or a rank's parts of them.
    pub fn finish(
        &self,
        y: &Tensor,
        [of_pictures, of_text]: [&Tensor; 2],
        context: &Context,
        with_text: bool,
    ) -> Vec<Tensor> {
        let [text, pictures] = context.split(y);
        let y = context.pictures.gate(&self.pictures.o.forward(&pictures), of_pictures, 2);
        match with_text {
            true => vec![y, context.text.gate(&self.text.o.forward(&text), of_text, 2)],
            false => vec![y],
        }
    }

    /// Returns the factor of the products of queries and keys.
    pub fn scale(&self) -> f64 {
        (self.head_dim as f64).powf(-0.5)
    }
}

impl FeedForward {
    /// Takes both maps of the feed-forward of a stream.
    pub fn new(scope: &Scope<'_>, stream: &str) -> FeedForward {
        FeedForward {
            up: Linear::new(scope, &format!("{stream}_mlp.net.0.proj")),
            down: Linear::new(scope, &format!("{stream}_mlp.net.2")),
        }
    }

    /// Maps rows `[rows, D]` of a stream and its modulations to the gated branch.
    pub fn forward(&self, x: &Tensor, modulations: &Tensor, segments: &Segments) -> Tensor {
        let x = segments.modulate(x, modulations, 3, EPS);
        let y = self.down.forward(&Activation::GeluTanh.forward(&self.up.forward(&x)));
        segments.gate(&y, modulations, 5)
    }
}
