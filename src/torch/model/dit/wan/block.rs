//! A block of Wan: self-attention and feed-forward, modulated by noise levels, and between them cross-attention to the prompt
//! and to pictures.
//!
//! Shapes: T tokens of a latent, R rows of modulations, K rows of text and I of pictures, D width, H heads, C head size.

use tch::Tensor;

use super::attention::{Heads, Normed};
use super::config::WanConfig;
use super::layout::{Context, Tables};
use crate::model::dit::maps::{map, zeroed};
use crate::model::dit::segments::wide;
use crate::nn::{Activation, LayerNorm, Linear, RmsNorm};
use crate::params::{Init, ParamSpec, Scope};

/// The table of a block, which is added to the modulations of noise levels: `[1, 6, D]`.
const TABLE: &str = "scale_shift_table";

pub(in crate::model) struct SelfAttention {
    table: Tensor,
    heads: Heads,
    eps: f64,
}

pub(in crate::model) struct PromptAttention {
    norm: Option<LayerNorm>,
    heads: Heads,
    /// Keys and values of pictures.
    pictures: Option<(Normed, Linear)>,
    head_dim: i64,
}

pub(in crate::model) struct FeedForward {
    table: Tensor,
    up: Linear,
    down: Linear,
    eps: f64,
}

impl SelfAttention {
    /// Takes the modulations `[1, 6, D]` and the heads of the self-attention.
    pub fn new(scope: &Scope<'_>, config: &WanConfig) -> SelfAttention {
        SelfAttention {
            table: scope.take(&config.in_block(TABLE)),
            heads: Heads::new(scope, "attn1", config),
            eps: config.eps,
        }
    }

    /// Maps `x` `[T, D]` and the modulations of noise levels `[R, 6, D]` to the gated branch `[T, D]`.
    pub(super) fn forward(&self, x: &Tensor, modulations: &Tensor, context: &Context) -> Tensor {
        let [q, k, v] = self.heads(x, modulations, &context.tables);
        self.finish(&context.clips.whole().forward(&q, &k, &v), modulations, &context.tables)
    }

    /// Returns the queries and keys, turned, and values of the heads: `[T, H, C]`.
    pub fn heads(&self, x: &Tensor, modulations: &Tensor, tables: &Tables) -> [Tensor; 3] {
        let x = self.modulated(x, modulations, tables);
        let [q, k] = [&self.heads.q, &self.heads.k].map(|map| map.forward_turned(&x, &tables.rotation));
        [q, k, self.heads.values(&x)]
    }

    /// Computes, on a rank with some of the heads, queries and keys before their norms, values, and the sums of squares of
    /// queries and keys. Three of `[T, H·C]`, values as heads `[T, H, C]`, and `[T, 2]`.
    pub fn project(&self, x: &Tensor, modulations: &Tensor, tables: &Tables) -> Vec<Tensor> {
        let x = self.modulated(x, modulations, tables);
        let [[q, of_q], [k, of_k]] = [&self.heads.q, &self.heads.k].map(|map| map.project(&x));
        vec![q, k, self.heads.values(&x), Tensor::cat(&[of_q, of_k], 1)]
    }

    /// Brings what [`SelfAttention::project`] gave, with the sums of all ranks' squares, to what [`SelfAttention::heads`] gives.
    /// Each is `[T, H, C]`.
    pub fn normed(&self, projected: &[Tensor], tables: &Tables) -> [Tensor; 3] {
        let [q, k, v, squares] = projected else { unreachable!("queries, keys, values and squares") };
        let q = self.heads.q.normed(q, &squares.narrow(1, 0, 1));
        let k = self.heads.k.normed(k, &squares.narrow(1, 1, 1));
        [tables.rotation.apply(&q), tables.rotation.apply(&k), v.shallow_clone()]
    }

    /// Maps attended values `[T, H·C]` to the gated branch, or a rank's part of it.
    pub fn finish(&self, y: &Tensor, modulations: &Tensor, tables: &Tables) -> Tensor {
        tables.segments.gate(&self.heads.output(y), &of(modulations, &self.table), 2)
    }

    /// Returns the factor of the products of queries and keys.
    pub fn scale(&self) -> f64 {
        self.heads.scale()
    }

    fn modulated(&self, x: &Tensor, modulations: &Tensor, tables: &Tables) -> Tensor {
        tables.segments.modulate(x, &of(modulations, &self.table), 0, self.eps)
    }
}

impl PromptAttention {
    /// Takes the heads of the cross-attention to the prompt, with keys and values of pictures where the model reads such.
    pub fn new(scope: &Scope<'_>, config: &WanConfig) -> PromptAttention {
        let pictures = || {
            let keys = Normed::new(scope, "attn2.add_k_proj", "attn2.norm_added_k", config);
            (keys, Linear::new(scope, &config.in_block("attn2.add_v_proj")))
        };
        PromptAttention {
            norm: config.cross_norm.then(|| LayerNorm::new(scope, &config.in_block("norm2"), config.eps)),
            heads: Heads::new(scope, "attn2", config),
            pictures: config.image.is_some().then(pictures),
            head_dim: config.head_dim,
        }
    }

    fn normed(&self, x: &Tensor) -> Tensor {
        self.norm.as_ref().map_or_else(|| x.shallow_clone(), |norm| norm.forward_wide(x))
    }

    fn picture_values(&self, values: &Linear, pictures: &Tensor) -> Tensor {
        values.forward(pictures).unflatten(-1, [-1, self.head_dim])
    }

    /// Maps `x` `[T, D]`, `text` `[K, D]` and `pictures` `[I, D]` to the branch `[T, D]`.
    pub fn forward(&self, x: &Tensor, text: &Tensor, pictures: Option<&Tensor>, tables: &Tables) -> Tensor {
        let q = self.heads.q.forward(&self.normed(x));
        let of_pictures = self
            .pictures
            .as_ref()
            .zip(pictures)
            .map(|((keys, values), pictures)| [keys.forward(pictures), self.picture_values(values, pictures)]);
        self.attend(&q, [self.heads.k.forward(text), self.heads.values(text)], of_pictures, tables)
    }

    /// Computes, on a rank with some of the heads, the sums of squares of queries and of each kind of keys, and then what they
    /// are of, each kind of keys with its values. Sums are `[rows, 1]`, queries and keys `[rows, H·C]`, values `[rows, H, C]`.
    pub fn project(&self, x: &Tensor, text: &Tensor, pictures: Option<&Tensor>) -> Vec<Tensor> {
        let [q, of_q] = self.heads.q.project(&self.normed(x));
        let [k, of_k] = self.heads.k.project(text);
        let (mut squares, mut values) = (vec![of_q, of_k], vec![q, k, self.heads.values(text)]);
        if let Some(((keys, maps), pictures)) = self.pictures.as_ref().zip(pictures) {
            let [k, of_k] = keys.project(pictures);
            squares.push(of_k);
            values.extend([k, self.picture_values(maps, pictures)]);
        }
        squares.append(&mut values);
        squares
    }

    /// Brings what [`PromptAttention::project`] gave, with the sums of all ranks' squares, to the rank's part of the branch.
    /// Returns `[T, D]`.
    pub fn finish(&self, projected: &[Tensor], tables: &Tables) -> Tensor {
        let (squares, values) = projected.split_at(if projected.len() > 5 { 3 } else { 2 });
        let q = self.heads.q.normed(&values[0], &squares[0]);
        let text = [self.heads.k.normed(&values[1], &squares[1]), values[2].shallow_clone()];
        let of_pictures = self
            .pictures
            .as_ref()
            .zip(squares.get(2))
            .map(|((keys, _), squares)| [keys.normed(&values[3], squares), values[4].shallow_clone()]);
        self.attend(&q, text, of_pictures, tables)
    }

    fn attend(&self, q: &Tensor, [k, v]: [Tensor; 2], pictures: Option<[Tensor; 2]>, tables: &Tables) -> Tensor {
        let y = tables.prompts.forward(q, &k, &v);
        let y = match (pictures, &tables.pictures) {
            (Some([k, v]), Some(met)) => y + met.forward(q, &k, &v),
            _ => y,
        };
        self.heads.output(&y)
    }
}

impl FeedForward {
    /// Takes the modulations and both maps of the feed-forward.
    pub fn new(scope: &Scope<'_>, config: &WanConfig) -> FeedForward {
        FeedForward {
            table: scope.take(&config.in_block(TABLE)),
            up: Linear::new(scope, &config.in_block("ffn.net.0.proj")),
            down: Linear::new(scope, &config.in_block("ffn.net.2")),
            eps: config.eps,
        }
    }

    /// Works like [`SelfAttention::forward`]: `[T, D]` and `[R, 6, D]` to `[T, D]`.
    pub fn forward(&self, x: &Tensor, modulations: &Tensor, tables: &Tables) -> Tensor {
        let table = of(modulations, &self.table);
        let x = tables.segments.modulate(x, &table, 3, self.eps);
        let y = self.down.forward(&Activation::GeluTanh.forward(&self.up.forward(&x)));
        tables.segments.gate(&y, &table, 5)
    }
}

/// Returns the parameters of a block, of this rank's part of it. Branches that are modulated start at nothing.
pub(in crate::model) fn specs(config: &WanConfig, prefix: &str) -> Vec<ParamSpec> {
    let (width, inner) = (config.width(), config.local_inner());
    let named = |name: &str| config.in_block(name);
    let table = Init::Normal((width as f64).powf(-0.5));
    let mut specs = vec![ParamSpec::new(format!("{prefix}{}", named(TABLE)), &[1, 6, width], table)];
    let mut attention = Heads::specs(config, prefix, "attn1");
    let output = format!("{prefix}{}.weight", named("attn1.to_out.0"));
    attention.iter_mut().filter(|spec| spec.name == output).for_each(|spec| spec.init = Init::Zeros);
    specs.extend(attention);
    specs.extend(Heads::specs(config, prefix, "attn2"));
    if config.image.is_some() {
        let heads = config.local_width();
        let added = ["attn2.add_k_proj", "attn2.add_v_proj"];
        specs.extend(added.into_iter().flat_map(|name| map(prefix, &named(name), width, heads)));
        specs.extend(RmsNorm::specs(prefix, &named("attn2.norm_added_k"), heads));
    }
    if config.cross_norm {
        specs.extend(LayerNorm::specs(prefix, &named("norm2"), width));
    }
    specs.extend(map(prefix, &named("ffn.net.0.proj"), width, inner));
    specs.extend(zeroed(map(prefix, &named("ffn.net.2"), inner, width)));
    specs
}

/// Returns the modulations `[R, 6, D]` with a block's table added.
fn of(modulations: &Tensor, table: &Tensor) -> Tensor {
    wide(modulations) + wide(table)
}
