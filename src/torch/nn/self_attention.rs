//! Multi-head and grouped-query self-attention (Vaswani et al. 2017; Ainslie et al. 2023), as LLaMA, Qwen and those
//! that followed have it.
//!
//! Shapes: T tokens, B sequences, S columns, D hidden size, H query heads, K key and value heads, C head size.

use tch::Tensor;

use super::attend::attend_sinking;
use super::mixer::{CacheColumns, Context, Mixer, QkvMixer, State};
use super::norm::{NormConfig, RmsNorm};
use super::window::attend_window;
use super::{Linear, PackedAttention, PieceAttention, Rope, Scores};
use crate::params::{Init, ParamSpec, Scope};

const SINKS: &str = "sinks";

/// Norms of queries and keys before the rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    None,
    /// A norm over each head, with one weight for all (Qwen3).
    Head,
    /// A norm over each head behind the rotation (HunYuan).
    TurnedHead,
    /// A norm over all heads together (MiniMax-M2).
    Full,
}

/// Says how a checkpoint stores the projections of queries, keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qkv {
    Separate([&'static str; 3]),
    /// Queries, then keys, then values (Qwen 1).
    Joint(&'static str),
    /// One weight that holds, for each key head, its queries, its key and its value (InternLM2).
    Grouped(&'static str),
}

/// An attention block.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionConfig {
    pub num_heads: i64,
    pub num_kv_heads: i64,
    pub head_dim: i64,
    pub qkv: Qkv,
    pub qkv_bias: bool,
    pub o: &'static str,
    pub o_bias: bool,
    pub qk_norm: QkNorm,
    /// The modules of these norms, where there are some.
    pub qk_norm_names: [&'static str; 2],
    /// True if the output is multiplied by the sigmoid of a gate that the query projection makes as well
    /// (Qwen3-Next).
    pub output_gate: bool,
    /// True if queries and keys turn by their positions; false in layers without (SmolLM3).
    pub turns: bool,
    /// The number of tokens that a token sees, itself included; `None`: all before it.
    pub window: Option<i64>,
    pub scores: Scores,
    /// True if every query also sees a key without a value, whose score is learned, one a head (gpt-oss).
    pub sinks: bool,
}

impl AttentionConfig {
    /// Returns projections `q_proj`, `k_proj`, `v_proj` and `o_proj` without biases, as most have them.
    pub fn new(num_heads: i64, num_kv_heads: i64, head_dim: i64) -> AttentionConfig {
        AttentionConfig {
            num_heads,
            num_kv_heads,
            head_dim,
            qkv: Qkv::Separate(["q_proj", "k_proj", "v_proj"]),
            qkv_bias: false,
            o: "o_proj",
            o_bias: false,
            qk_norm: QkNorm::None,
            qk_norm_names: ["q_norm", "k_norm"],
            output_gate: false,
            turns: true,
            window: None,
            scores: Scores::default(),
            sinks: false,
        }
    }
}

/// The block on its parameters.
pub struct SelfAttention {
    config: AttentionConfig,
    /// One, or one for each of queries, keys and values.
    projections: Vec<Linear>,
    o: Linear,
    norms: Option<[RmsNorm; 2]>,
    /// `[H]`
    sinks_H: Option<Tensor>,
}

impl SelfAttention {
    /// Declares projections of a hidden size of `width`, norms of queries and keys and sinks, as `config` has them, under
    /// `prefix`. `std`: of the weights' first values.
    pub fn specs(prefix: &str, width: i64, config: &AttentionConfig, norm: &NormConfig, std: f64) -> Vec<ParamSpec> {
        let (queries, keys) = (config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim);
        let first = if config.output_gate { 2 * queries } else { queries };
        let outputs: Vec<(&str, i64)> = match config.qkv {
            Qkv::Separate([q, k, v]) => vec![(q, first), (k, keys), (v, keys)],
            Qkv::Joint(name) | Qkv::Grouped(name) => vec![(name, first + 2 * keys)],
        };
        let linear = |(name, outputs): (&str, i64)| Linear::specs(prefix, name, width, outputs, config.qkv_bias, std);
        let mut specs: Vec<ParamSpec> = outputs.into_iter().flat_map(linear).collect();
        if matches!(config.qkv, Qkv::Joint(_)) {
            specs = specs.into_iter().map(|spec| spec.in_sections(0, &[first, keys, keys])).collect();
        }
        specs.extend(Linear::specs(prefix, config.o, queries, width, config.o_bias, std));
        if config.sinks {
            specs.push(ParamSpec::new(format!("{prefix}{SINKS}"), &[config.num_heads], Init::Normal(std)));
        }
        let widths = match config.qk_norm {
            QkNorm::None => return specs,
            QkNorm::Head | QkNorm::TurnedHead => [config.head_dim; 2],
            QkNorm::Full => [queries, keys],
        };
        for (name, width) in config.qk_norm_names.into_iter().zip(widths) {
            specs.extend(norm.specs(prefix, name, width));
        }
        specs
    }

    /// Takes the parameters that [`SelfAttention::specs`] declares.
    pub fn new(scope: &Scope<'_>, config: &AttentionConfig, norm: &NormConfig) -> SelfAttention {
        let projections = match config.qkv {
            Qkv::Separate(names) => names.iter().map(|name| Linear::new(scope, name)).collect(),
            Qkv::Joint(name) | Qkv::Grouped(name) => vec![Linear::new(scope, name)],
        };
        let norms = || config.qk_norm_names.map(|name| norm.build(scope, name));
        SelfAttention {
            projections,
            o: Linear::new(scope, config.o),
            norms: (config.qk_norm != QkNorm::None).then(norms),
            sinks_H: config.sinks.then(|| scope.take(SINKS)),
            config: config.clone(),
        }
    }

    /// Returns the queries `[T, H, C]`, keys and values `[T, K, C]`, and the gate `[T, H·C]` where there is one.
    fn heads(&self, x_TD: &Tensor, rope: &Rope) -> ([Tensor; 3], Option<Tensor>) {
        let config = &self.config;
        let by_head = |y: &Tensor| y.unflatten(-1, [-1, config.head_dim]);
        let (num_heads, num_kv_heads) = (config.num_heads, config.num_kv_heads);
        let mut projected = self.projections.iter().map(|projection| projection.forward(x_TD));
        let first = projected.next().expect("at least one projection");
        let [mut q, k, v] = match config.qkv {
            Qkv::Separate(_) => {
                let mut other = || by_head(&projected.next().expect("three projections"));
                let (k, v) = (other(), other());
                let q = if config.output_gate { first.unflatten(-1, [num_heads, -1]) } else { by_head(&first) };
                [q, k, v]
            }
            Qkv::Joint(_) => {
                let parts = by_head(&first).split_with_sizes([num_heads, num_kv_heads, num_kv_heads], 1);
                <[Tensor; 3]>::try_from(parts).expect("three parts")
            }
            Qkv::Grouped(_) => {
                let queries = num_heads / num_kv_heads;
                let groups = first.unflatten(-1, [num_kv_heads, queries + 2, config.head_dim]);
                let q = groups.narrow(2, 0, queries).flatten(1, 2);
                [q, groups.select(2, queries), groups.select(2, queries + 1)]
            }
        };
        let mut gate = None;
        if config.output_gate {
            let halves = q.chunk(2, -1);
            gate = Some(halves[1].flatten(1, 2));
            q = halves[0].shallow_clone();
        }
        let normed = |x: &Tensor, index: usize| match (&self.norms, config.qk_norm) {
            (Some(norms), QkNorm::Head | QkNorm::TurnedHead) => norms[index].forward(x),
            (Some(norms), _) => by_head(&norms[index].forward(&x.flatten(1, 2))),
            (None, _) => x.shallow_clone(),
        };
        if !config.turns {
            return ([normed(&q, 0), normed(&k, 1), v], gate);
        }
        let rotated = |x: &Tensor, index: usize| match (&self.norms, config.qk_norm) {
            (Some(norms), QkNorm::Head) => norms[index].forward_rotated(x, rope),
            (Some(norms), QkNorm::TurnedHead) => norms[index].forward(&rope.apply(x)),
            _ => rope.apply(&normed(x, index)),
        };
        ([rope.scale_queries(rotated(&q, 0)), rotated(&k, 1), v], gate)
    }

    fn attend(&self, documents: &PackedAttention, [q_THC, k_TKC, v_TKC]: [&Tensor; 3]) -> Tensor {
        let (heads, scores, sinks_H) = ([q_THC, k_TKC, v_TKC], self.config.scores, self.sinks_H.as_ref());
        match self.config.window {
            Some(window) => attend_window(documents, heads, window, scores, sinks_H),
            None => documents.forward_sinking(heads, scores, sinks_H),
        }
    }

    /// Maps attended values `[…, H·C]` to the branch's output.
    fn output(&self, y: &Tensor, gate: Option<&Tensor>) -> Tensor {
        match gate {
            Some(gate) => self.o.forward(&(y * gate.sigmoid())),
            None => self.o.forward(y),
        }
    }
}

impl Mixer for SelfAttention {
    fn forward(&self, x_TD: &Tensor, context: &Context) -> Tensor {
        let ([q_THC, k_TKC, v_TKC], gate) = self.heads(x_TD, &context.rope);
        self.output(&self.attend(&context.documents, [&q_THC, &k_TKC, &v_TKC]), gate.as_ref())
    }

    /// Returns this mixer, except where it has a window, a soft cap or sinks.
    fn cut(&self) -> Option<&dyn QkvMixer> {
        let AttentionConfig { window, scores, sinks, .. } = &self.config;
        (window.is_none() && scores.soft_cap.is_none() && !sinks).then_some(self)
    }

    fn takes_pieces(&self) -> bool {
        self.config.window.is_none()
    }

    fn forward_piece(
        &self,
        x_TD: &Tensor,
        context: &Context,
        piece: &PieceAttention,
        past: Option<[&Tensor; 2]>,
    ) -> [Tensor; 3] {
        let ([q_THC, k_TKC, v_TKC], gate) = self.heads(x_TD, &context.rope);
        let sinks_H = self.sinks_H.as_ref();
        let y = piece.forward([&q_THC, &k_TKC, &v_TKC], past, self.config.scores, sinks_H);
        [self.output(&y, gate.as_ref()), k_TKC, v_TKC]
    }

    fn prefill(&self, x_TD: &Tensor, context: &Context, columns: &CacheColumns, state: &mut State) -> Tensor {
        let ([q_THC, k_TKC, v_TKC], gate) = self.heads(x_TD, &context.rope);
        *state = vec![columns.store(&k_TKC), columns.store(&v_TKC)];
        self.output(&self.attend(&context.documents, [&q_THC, &k_TKC, &v_TKC]), gate.as_ref())
    }

    fn step(&self, x_BD: &Tensor, rope: &Rope, columns: &CacheColumns, state: &mut State) -> Tensor {
        let ([q_BHC, k_BKC, v_BKC], gate) = self.heads(x_BD, rope);
        let seen = self.config.window.unwrap_or(columns.used).min(columns.used);
        let last = |x: &Tensor, dim: i64| x.narrow(dim, columns.used - seen, seen);
        let k_BSKC = last(&columns.append(&state[0], &k_BKC), 1);
        let v_BSKC = last(&columns.append(&state[1], &v_BKC), 1);
        let mask = columns.mask_on(q_BHC.device()).map(|mask| last(&mask, 3));
        let (q_B1HC, sinks_H) = (q_BHC.unsqueeze(1), self.sinks_H.as_ref());
        let y = attend_sinking(&q_B1HC, &k_BSKC, &v_BSKC, mask.as_ref(), false, self.config.scores, sinks_H);
        self.output(&y.flatten(1, 2), gate.as_ref())
    }
}

impl QkvMixer for SelfAttention {
    fn before(&self, x_TD: &Tensor, rope: &Rope) -> Vec<Tensor> {
        let (parts, gate) = self.heads(x_TD, rope);
        parts.into_iter().chain(gate).collect()
    }

    fn num_cut(&self) -> usize {
        3 + usize::from(self.config.output_gate)
    }

    fn scale(&self) -> f64 {
        self.config.scores.scale_of(self.config.head_dim)
    }

    fn after(&self, y: &Tensor, others: &[Tensor]) -> Tensor {
        self.output(y, others.first())
    }
}
