//! A policy as data.

use loongforge_core::schedule::TimeSampler;

use crate::nn::{Activation, NormConfig, RopeConfig};
use crate::params::{Init, ParamSpec};

/// The base of rotary embeddings.
const THETA: f64 = 10_000.0;

/// A policy of two streams.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyConfig {
    pub names: PolicyTree,
    /// The entries of the prefix's table of tokens.
    pub vocab_size: i64,
    /// The token that features of pictures replace; it may have no entry.
    pub image_token: i64,
    /// The stream of the prefix, and that of actions.
    pub text: StreamConfig,
    pub expert: StreamConfig,
    /// The norms of both streams, but for those that have a condition.
    pub norm: NormConfig,
    /// The activation of the feed-forwards of both streams.
    pub activation: Activation,
    /// True if features of pictures are multiplied by the root of their width, as tokens are.
    pub scaled_pictures: bool,
    /// Actions attend to both streams in the layers whose numbers are multiples of this, the first of which is 0; in the others they
    /// attend to the prefix alone, whose keys and values they map once more. 1: they attend to both in all layers. 0: in none.
    pub joint_every: usize,
    /// True if an action sees itself and those before it alone, where actions attend to each other.
    pub causal_actions: bool,
    /// Numbers of an action, and of a state.
    pub action_dim: i64,
    pub state_dim: i64,
    /// Actions of a sample.
    pub horizon: i64,
    pub time: TimeUse,
    pub state: StateToken,
    /// The distribution from which times between actions, 0, and noise, 1, are drawn in training.
    pub times: TimeSampler,
    /// The shortest and the longest period of the sinusoids of a time.
    pub periods: [f64; 2],
    /// Steps from noise to actions.
    pub num_steps: i64,
    /// True if parameters start so that a small policy of random weights looks at its pictures.
    pub visual_start: bool,
    pub frozen: FrozenParts,
    pub options: PolicyOptions,
}

/// The beginnings of parameters' names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyTree {
    /// The prefix of all names.
    pub all: &'static str,
    /// The part of the vision-language model's prefix behind `all`.
    pub vlm: &'static str,
    /// The part of the prefix of the language stream behind `vlm`.
    pub text: &'static str,
    /// The part of the prefix of the actions' stream behind `all`.
    pub expert: &'static str,
    /// The name behind `vlm` under which the table of tokens is stored once more, where it is.
    pub head: Option<&'static str>,
}

/// The frozen parts of the policy besides those that nothing reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrozenParts {
    /// The stream of the prefix and its table of tokens.
    pub prefix: bool,
    /// All of the prefix's last layer, its keys and values as well.
    pub last_layer: bool,
    /// The map of states.
    pub state: bool,
}

/// The widths of a stream, in openpi's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    pub width: i64,
    pub depth: i64,
    pub mlp_dim: i64,
    pub num_heads: i64,
    pub num_kv_heads: i64,
    pub head_dim: i64,
}

/// Says where the time of the noise goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUse {
    /// Into the norms of the actions' stream (Pi0.5).
    Norms,
    /// Into each action's row, by two maps of both (Pi0).
    Rows,
}

/// Says which row a state has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateToken {
    /// None: what is known of it is text of the prompt (Pi0.5).
    None,
    /// The last of the prefix.
    Prefix,
    /// The same at a level of its own: the rows before it do not see it (SmolVLA).
    PrefixLevel,
    /// The one before the actions in their stream, which does not see them (Pi0).
    Actions,
}

/// Settings of a policy's training beside those of its flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicyOptions {
    /// Draws of noise and time for each sample, whose prefix is computed once.
    pub noise_draws: u32,
    /// True if gradients of actions end at the keys and values of the prefix (knowledge insulation).
    pub insulate: bool,
    /// The weight of the loss of actions by flow, where there is one of tokens.
    pub flow_weight: f64,
    /// The weight of the loss of the tokens behind a prompt, which the prefix's stream predicts and actions do not see; 0: there is none.
    pub token_weight: f64,
    /// The most actions at the begin of a chunk that a draw is given as they are, and that it does not learn: the policy goes on
    /// with a chunk then (real-time chunking).
    pub max_delay: u32,
}

impl Default for PolicyOptions {
    fn default() -> PolicyOptions {
        PolicyOptions { noise_draws: 1, insulate: false, flow_weight: 1.0, token_weight: 0.0, max_delay: 0 }
    }
}

impl StateToken {
    /// Returns whether the state is a row of the prefix.
    pub(super) fn is_in_prefix(self) -> bool {
        matches!(self, StateToken::Prefix | StateToken::PrefixLevel)
    }
}

impl PolicyConfig {
    /// Returns whether norms of the actions' stream have a condition.
    pub(super) fn has_condition(&self) -> bool {
        self.time == TimeUse::Norms
    }

    /// Returns the number of rows of a draw in the stream of actions.
    pub(super) fn num_rows(&self) -> i64 {
        self.horizon + i64::from(self.state == StateToken::Actions)
    }

    /// Returns the levels of these rows: each sees the rows whose level is not above its own.
    pub(super) fn levels(&self) -> Vec<u32> {
        let state = (self.state == StateToken::Actions).then_some(1);
        let of_action = |number: u32| if self.causal_actions { 2 + number } else { 2 };
        state.into_iter().chain((0..self.horizon as u32).map(of_action)).collect()
    }

    /// Returns whether the prefix's stream predicts tokens.
    pub(super) fn learns_tokens(&self) -> bool {
        self.options.token_weight > 0.0
    }

    /// Returns whether the prefix is read behind the layer `number`: behind the last one by the head of tokens alone.
    pub(super) fn reads_prefix_behind(&self, number: usize) -> bool {
        self.learns_tokens() || number + 1 < self.num_layers()
    }

    /// Returns whether actions attend to the prefix alone in the layer `number`.
    pub(super) fn is_cross(&self, number: usize) -> bool {
        self.joint_every == 0 || !number.is_multiple_of(self.joint_every)
    }

    pub(super) fn num_layers(&self) -> usize {
        self.text.depth as usize
    }

    /// Returns the rotary embedding of both streams, with the base that the reference has for all.
    pub(super) fn rope(&self) -> RopeConfig {
        RopeConfig::plain(self.text.head_dim, THETA)
    }

    /// Returns the prefix of the names of the vision-language model's parameters.
    pub(super) fn vlm_prefix(&self) -> String {
        format!("{}{}", self.names.all, self.names.vlm)
    }

    /// Returns the prefix of the names of the parameters of the prefix's stream.
    pub(super) fn text_prefix(&self) -> String {
        format!("{}{}", self.vlm_prefix(), self.names.text)
    }

    /// Returns the prefix of the names of the parameters of the actions' stream.
    pub(super) fn expert_prefix(&self) -> String {
        format!("{}{}", self.names.all, self.names.expert)
    }

    /// Returns the standard deviation of random weights of a map of a stream with so many inputs.
    pub(super) fn std(&self, inputs: i64) -> f64 {
        if self.visual_start { torch_std(inputs) } else { 0.02 }
    }

    /// Returns the parameters of the prefix, frozen where the policy says so.
    pub(super) fn of_prefix(&self, specs: Vec<ParamSpec>) -> Vec<ParamSpec> {
        if self.frozen.prefix { specs.into_iter().map(ParamSpec::frozen).collect() } else { specs }
    }
}

/// Returns the standard deviation of random weights of a map with so many inputs, as torch draws them.
pub(super) fn torch_std(inputs: i64) -> f64 {
    (3.0 * inputs as f64).powf(-0.5)
}

/// Returns the same parameters, with weights that start as `init`.
pub(super) fn starting(mut specs: Vec<ParamSpec>, init: [Init; 2]) -> Vec<ParamSpec> {
    specs.iter_mut().zip(init).for_each(|(spec, init)| spec.init = init);
    specs
}
