//! A policy as data.

use loongforge_core::schedule::TimeSampler;

use crate::model::decoder::DecoderConfig;
use crate::model::policy::PolicyOptions;
use crate::model::towers::FeatureInput;
use crate::params::ParamSpec;

/// The column that says of which embodiment a sample is.
pub(super) const EMBODIMENT: &str = "embodiment";
/// The standard deviation of random weights of maps of embodiments, and of positions.
pub(super) const STD: f64 = 0.02;

/// A policy with a diffusion transformer behind a decoder's first layers.
#[derive(Clone, Debug, PartialEq)]
pub struct GrootConfig {
    /// The prefix of the names of all parameters.
    pub prefix: String,
    /// The layers of the language model that are there. Actions see what the last of them returns.
    pub backbone: DecoderConfig,
    /// True if they see it behind the language model's last norm (N1.6).
    pub last_norm: bool,
    /// The features that replace tokens of pictures.
    pub input: FeatureInput,
    /// True if the language model is a tower of its own, with that of pictures in it: states of tokens come as features.
    pub split: bool,
    /// True if states of tokens are normed before anything else (`use_vlln`).
    pub norm: bool,
    /// The transformer over the tokens of a sample (`vl_self_attention`), and that of actions.
    pub context: TransformerSizes,
    pub actions: TransformerSizes,
    /// Layers that see tokens see those of text first, and go on with so many of a kind: 2 in the published policy, where
    /// every second layer sees the rows of actions (`attend_text_every_n_blocks`).
    pub text_every: i64,
    /// The width behind the transformer of actions, and within the maps of an embodiment.
    pub hidden_size: i64,
    /// Numbers of an action, and of a state.
    pub action_dim: i64,
    pub state_dim: i64,
    /// Actions of a sample.
    pub horizon: i64,
    /// Entries of the table of positions of actions; `None`: there is none.
    pub max_positions: Option<i64>,
    pub num_embodiments: i64,
    /// The distribution from which times between actions, 0, and noise, 1, are drawn in training: the reference counts them the other way
    /// round.
    pub times: TimeSampler,
    /// Times are rounded down to so many (`num_timestep_buckets`).
    pub num_buckets: i64,
    /// The probability that a state is hidden in training.
    pub state_dropout: f64,
    /// True if a learned row takes the place of a hidden state (N1.6's `mask_token`), not zeros.
    pub has_mask_token: bool,
    /// The standard deviation of what is added to the row of a state in training (`state_additive_noise_scale`).
    pub state_noise: f64,
    /// Steps from noise to actions.
    pub num_steps: i64,
    pub tuned: Tuned,
    pub options: PolicyOptions,
}

/// The sizes of a transformer (`diffusion_model_cfg`, `vl_self_attention_cfg`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransformerSizes {
    pub num_layers: i64,
    pub num_heads: i64,
    pub head_dim: i64,
    /// The probability of a number to be dropped, in training, behind attention and within the feed-forward.
    pub dropout: f64,
    /// The same once more behind both.
    pub final_dropout: bool,
}

/// Says which parts are trained; the others are frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuned {
    pub llm: bool,
    /// The last layers of the language model, so many, in any case.
    pub top_llm_layers: usize,
    /// The tower of pictures, with its mergers.
    pub visual: bool,
    /// The maps of embodiments, and the positions of actions.
    pub projector: bool,
    pub diffusion_model: bool,
    /// The norm and the transformer over tokens.
    pub vlln: bool,
}

impl TransformerSizes {
    /// Returns the width of all heads together.
    pub fn width(&self) -> i64 {
        self.num_heads * self.head_dim
    }
}

impl GrootConfig {
    /// Returns the number of rows of a draw: the state, and the actions.
    pub(super) fn num_rows(&self) -> i64 {
        1 + self.horizon
    }

    /// Returns the prefix of the names of the language model's parameters.
    pub(super) fn backbone_prefix(&self) -> String {
        format!("{}backbone.", self.prefix)
    }

    /// Returns the prefix of the names of all other parameters.
    pub(super) fn head_prefix(&self) -> String {
        format!("{}action_head.", self.prefix)
    }
}

/// Returns the same parameters, frozen where the part is not `tuned`.
pub(super) fn of_part(tuned: bool, specs: Vec<ParamSpec>) -> Vec<ParamSpec> {
    if tuned { specs } else { specs.into_iter().map(ParamSpec::frozen).collect() }
}

/// Returns the standard deviation of random weights of a map with so many inputs, as torch draws them.
pub(super) fn torch_std(inputs: i64) -> f64 {
    (3.0 * inputs as f64).powf(-0.5)
}
