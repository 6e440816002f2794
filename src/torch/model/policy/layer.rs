//! A layer of both streams.
//!
//! Shapes: P rows of the prefix of width D, S groups of L rows of actions of width E, H query heads, K key and value heads, C
//! width of a head.

use tch::Tensor;

use super::config::{PolicyConfig, StreamConfig, TimeUse};
use super::layout::Layout;
use crate::model::tower_blocks::Part;
use crate::nn::{Activation, AdaptiveNorm, GateUp, Linear, RmsNorm, Rope, Scores, SwiGlu, gate_rows_of};
use crate::params::{ParamSpec, ParamStore, Scope};

const INPUT_NORM: &str = "input_layernorm";
const POST_NORM: &str = "post_attention_layernorm";
const HEADS: [&str; 3] = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
const OUT: &str = "self_attn.o_proj";
const MLP: [&str; 3] = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];

/// The norm before a branch.
pub(super) enum Norm {
    Plain(RmsNorm),
    /// A norm whose scale and shift are maps of the time of the noise.
    Adaptive(AdaptiveNorm),
}

/// Queries, keys and values of a stream, and the map of what they attend to.
pub(super) struct Heads {
    norm: Norm,
    /// The maps to keys and values, from the stream's rows, or from the prefix's keys and values where `is_cross`.
    keys: [Linear; 2],
    is_cross: bool,
    /// `None` where nothing reads what they would make.
    queries: Option<[Linear; 2]>,
    head_dim: i64,
}

/// The feed-forward of a stream.
pub(super) struct FeedForward {
    norm: Norm,
    mlp: SwiGlu,
}

/// A layer on its parameters.
pub(super) struct Layer {
    pub prefix_heads: Part<Heads>,
    pub action_heads: Part<Heads>,
    /// `None` in the last layer, where nothing reads the prefix behind it.
    pub prefix: Option<Part<FeedForward>>,
    pub actions: Part<FeedForward>,
}

/// Returns the parameters of the layer `number` of both streams.
pub(super) fn specs(config: &PolicyConfig, number: usize) -> Vec<ParamSpec> {
    let is_last = !config.reads_prefix_behind(number);
    let mut specs = Vec::new();
    let prefix = format!("{}layers.{number}.", config.text_prefix());
    let plain = |prefix: &str, name: &str, width: i64| config.norm.specs(prefix, name, width);
    let mut of_prefix = stream_specs(config, &prefix, &config.text, false, &plain);
    if is_last && config.frozen.last_layer {
        of_prefix = of_prefix.into_iter().map(ParamSpec::frozen).collect();
    } else if is_last {
        // Nothing reads the prefix behind its last keys and values. The reference decays the weights of queries, whose gradient
        // is 0 there, and leaves those alone that have none.
        let is_read = |spec: &ParamSpec| std::iter::once(INPUT_NORM).chain(HEADS).any(|name| spec.name.contains(name));
        of_prefix = of_prefix.into_iter().map(|spec| if is_read(&spec) { spec } else { spec.frozen() }).collect();
    }
    specs.extend(config.of_prefix(of_prefix));
    let prefix = format!("{}layers.{number}.", config.expert_prefix());
    let is_cross = config.is_cross(number);
    let norm = |prefix: &str, name: &str, _| expert_norm(config, prefix, name);
    specs.extend(stream_specs(config, &prefix, &config.expert, is_cross, &norm));
    specs
}

/// Returns the parameters of a norm of the actions' stream.
pub(super) fn expert_norm(config: &PolicyConfig, prefix: &str, name: &str) -> Vec<ParamSpec> {
    let width = config.expert.width;
    match config.time {
        TimeUse::Norms => AdaptiveNorm::specs(prefix, name, width, width, config.visual_start),
        TimeUse::Rows => config.norm.specs(prefix, name, width),
    }
}

fn stream_specs(
    config: &PolicyConfig,
    prefix: &str,
    stream: &StreamConfig,
    is_cross: bool,
    norm: &dyn Fn(&str, &str, i64) -> Vec<ParamSpec>,
) -> Vec<ParamSpec> {
    let StreamConfig { width, mlp_dim, num_heads, num_kv_heads, head_dim, .. } = *stream;
    let (queries, keys) = (num_heads * head_dim, num_kv_heads * head_dim);
    let mut specs = norm(prefix, INPUT_NORM, width);
    let of_keys = if is_cross { config.text.num_kv_heads * config.text.head_dim } else { width };
    let sizes = [(width, queries), (of_keys, keys), (of_keys, keys)];
    for (name, (inputs, outputs)) in HEADS.into_iter().zip(sizes) {
        specs.extend(Linear::specs(prefix, name, inputs, outputs, false, config.std(inputs)));
    }
    specs.extend(Linear::specs(prefix, OUT, queries, width, false, config.std(queries)));
    specs.extend(norm(prefix, POST_NORM, width));
    let [gate, up, down] = MLP;
    for (name, inputs, outputs) in [(gate, width, mlp_dim), (up, width, mlp_dim), (down, mlp_dim, width)] {
        specs.extend(Linear::specs(prefix, name, inputs, outputs, false, config.std(inputs)));
    }
    specs
}

impl Norm {
    /// Takes the norm of the prefix, whose rows know no time.
    pub fn of_prefix(config: &PolicyConfig, scope: &Scope<'_>, name: &str) -> Norm {
        Norm::Plain(config.norm.build(scope, name))
    }

    /// Takes a norm of the actions: a condition makes its scale and shift where the time enters through norms.
    pub fn of_actions(config: &PolicyConfig, scope: &Scope<'_>, name: &str) -> Norm {
        match config.time {
            TimeUse::Norms => Norm::Adaptive(AdaptiveNorm::new(scope, name, config.norm.eps)),
            TimeUse::Rows => Norm::Plain(config.norm.build(scope, name)),
        }
    }

    /// Returns the norm of rows `[S·L, D]`, and scale, shift and gate `[S, 3, D]` by the condition `[S, D]`, where it has one.
    pub fn forward(&self, x: &Tensor, condition: Option<&Tensor>) -> (Tensor, Option<Tensor>) {
        match self {
            Norm::Plain(norm) => (norm.forward(x), None),
            Norm::Adaptive(norm) => {
                let modulation = norm.modulation(condition.expect("an adaptive norm has a condition"));
                (norm.forward(x, &modulation), Some(modulation))
            }
        }
    }
}

/// Returns a branch's output times its gate, where it has one.
fn gated(y: Tensor, modulation: Option<&Tensor>) -> Tensor {
    modulation.map_or_else(|| y.shallow_clone(), |modulation| gate_rows_of(&y, modulation))
}

impl Heads {
    fn new(scope: &Scope<'_>, norm: Norm, head_dim: i64, is_cross: bool, with_queries: bool) -> Heads {
        let [q, k, v] = HEADS;
        let queries = with_queries.then(|| [q, OUT].map(|name| Linear::new(scope, name)));
        Heads { norm, keys: [k, v].map(|name| Linear::new(scope, name)), is_cross, queries, head_dim }
    }

    /// Returns the keys, turned, and values of normed rows: `[rows, K, C]`.
    fn keys(&self, x: &Tensor, rope: &Rope) -> [Tensor; 2] {
        let [k, v] = [0, 1].map(|at: usize| self.keys[at].forward(x).unflatten(-1, [-1, self.head_dim]));
        [rope.apply(&k), v]
    }

    /// Returns the queries of normed rows, turned `[rows, H, C]`, through `attend`, and the map of what it returns; `None` where nothing
    /// reads it.
    fn attended(&self, x: &Tensor, rope: &Rope, attend: impl FnOnce(&Tensor) -> Tensor) -> Option<Tensor> {
        let [q, o] = self.queries.as_ref()?;
        let q = rope.apply(&q.forward(x).unflatten(-1, [-1, self.head_dim]));
        Some(o.forward(&attend(&q)))
    }

    fn scores(&self) -> Scores {
        Scores::from((self.head_dim as f64).powf(-0.5))
    }

    /// Maps rows of the prefix `[P, D]` to the attention branch, where something reads it, and their keys and values.
    pub fn prefix(&self, x: &Tensor, at: &Layout) -> (Option<Tensor>, [Tensor; 2]) {
        let heads = |x: &Tensor| {
            let (x, _) = self.norm.forward(x, None);
            let maps = self.keys.iter().chain(self.queries.as_ref().map(|[q, _]| q));
            maps.map(|map| map.forward(&x).unflatten(-1, [-1, self.head_dim])).collect()
        };
        let heads = at.each_row(x, heads);
        let [k, v] = [at.ropes[0].apply(&heads[0]), heads[1].shallow_clone()];
        let y = self.queries.as_ref().map(|[_, o]| {
            let q = at.ropes[0].apply(&heads[2]);
            let y = at.prefix.forward_with(&q, &k, &v, self.scores());
            at.each_row(&y, |y| vec![o.forward(y)]).remove(0)
        });
        (y, [k, v])
    }

    /// Returns the prefix's keys and values `[P, K, C]` as rows of actions meet them: mapped once more where these attend to nothing
    /// else.
    pub fn met(&self, prefix: &[Tensor; 2]) -> [Tensor; 2] {
        match self.is_cross {
            true => {
                let mapped = |at: usize| self.keys[at].forward(&prefix[at].flatten(1, 2));
                [0, 1].map(|at| mapped(at).unflatten(-1, [-1, self.head_dim]))
            }
            false => prefix.each_ref().map(Tensor::shallow_clone),
        }
    }

    /// Maps rows of actions `[S·L, E]` to the gated attention branch, with the prefix's keys and values as [`Heads::met`] gives them.
    /// `condition` `[S, E]`.
    pub fn actions(&self, x: &Tensor, condition: Option<&Tensor>, met: &[Tensor; 2], at: &Layout) -> Tensor {
        let (x, modulation) = self.norm.forward(x, condition);
        let y = match &at.alone {
            Some(alone) if self.is_cross => {
                self.attended(&x, alone, |q| at.joint.forward_prefix(q, met.each_ref(), self.scores()))
            }
            _ => {
                let [k, v] = self.keys(&x, &at.ropes[1]);
                let attend = |q: &Tensor| at.joint.forward(q, met.each_ref(), [&k, &v], self.scores());
                self.attended(&x, &at.ropes[1], attend)
            }
        };
        gated(y.expect("the stream of actions is read"), modulation.as_ref())
    }
}

impl FeedForward {
    fn new(scope: &Scope<'_>, norm: Norm, activation: Activation) -> FeedForward {
        let [gate, up, down] = MLP;
        FeedForward { norm, mlp: SwiGlu::new(scope, (GateUp::Separate([gate, up]), down), activation) }
    }

    /// Maps rows of a stream to the gated branch: `[rows, D]` to `[rows, D]`; `condition` is that of the norm.
    pub fn forward(&self, x: &Tensor, condition: Option<&Tensor>) -> Tensor {
        let (x, modulation) = self.norm.forward(x, condition);
        gated(self.mlp.forward(&x), modulation.as_ref())
    }
}

impl Layer {
    /// Panics where the store lacks one of its parameters.
    pub fn new(config: &PolicyConfig, number: usize, params: &ParamStore) -> Layer {
        let is_last = !config.reads_prefix_behind(number);
        let [text, expert] =
            [config.text_prefix(), config.expert_prefix()].map(|prefix| format!("{prefix}layers.{number}."));
        let (head_dim, activation, is_cross) = (config.text.head_dim, config.activation, config.is_cross(number));
        let of_prefix = |scope: &Scope<'_>, name| Norm::of_prefix(config, scope, name);
        let of_actions = |scope: &Scope<'_>, name| Norm::of_actions(config, scope, name);
        Layer {
            prefix_heads: Part::new(params, text.as_str(), |scope| {
                Heads::new(scope, of_prefix(scope, INPUT_NORM), head_dim, false, !is_last)
            }),
            action_heads: Part::new(params, expert.as_str(), |scope| {
                Heads::new(scope, of_actions(scope, INPUT_NORM), head_dim, is_cross, true)
            }),
            prefix: (!is_last).then(|| {
                let mlp = |scope: &Scope<'_>| FeedForward::new(scope, of_prefix(scope, POST_NORM), activation);
                Part::new(params, text.as_str(), mlp)
            }),
            actions: Part::new(params, expert.as_str(), |scope| {
                FeedForward::new(scope, of_actions(scope, POST_NORM), activation)
            }),
        }
    }
}
