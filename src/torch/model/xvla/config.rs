//! A policy as data.

use loongforge_core::data::policy::ActionSpace;

use crate::model::bart::BartConfig;
use crate::model::policy::PolicyOptions;
use crate::params::{Init, ParamSpec};

/// The epsilon of all layer norms.
pub(super) const EPS: f64 = 1e-5;

/// The column that says of which domain a sample is.
pub(super) const DOMAIN: &str = "domain";

/// A policy with soft prompts.
#[derive(Clone, Debug, PartialEq)]
pub struct XvlaConfig {
    /// The prefix of the names of all parameters.
    pub prefix: String,
    pub language: BartConfig,
    /// Features of a picture, and pictures of a sample; those that it lacks are rows of zeros.
    pub view_features: i64,
    pub num_views: i64,
    /// The token that features of pictures replace; it has no entry in the table.
    pub image_token: i64,
    /// Actions of a sample.
    pub horizon: i64,
    pub space: ActionSpace,
    /// Numbers of a state; 0: there is none.
    pub state_dim: i64,
    pub num_domains: i64,
    /// Learned rows of each domain.
    pub num_prompts: i64,
    /// The transformer's.
    pub width: i64,
    pub depth: i64,
    pub num_heads: i64,
    pub mlp_dim: i64,
    /// Features of a time.
    pub time_dim: i64,
    /// Rows that have a position; prompts have none.
    pub max_rows: i64,
    /// True if the maps of what Florence-2 has made are of each domain.
    pub domain_maps: bool,
    /// Steps from noise to actions.
    pub num_steps: i64,
    pub frozen: FrozenParts,
    pub options: PolicyOptions,
}

/// Parts that are not trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrozenParts {
    /// The encoder of language, its table included.
    pub language: bool,
    /// The transformer, without its soft prompts.
    pub transformer: bool,
    pub prompts: bool,
}

impl XvlaConfig {
    /// Returns the number of values of an action of the model.
    pub fn action_dim(&self) -> i64 {
        self.space.dim() as i64
    }

    /// Returns the prefix of the names of the transformer's parameters.
    pub(super) fn transformer_prefix(&self) -> String {
        format!("{}transformer.", self.prefix)
    }

    pub(super) fn block_prefix(&self, number: i64) -> String {
        format!("{}blocks.{number}.", self.transformer_prefix())
    }

    /// Returns the transformer's parameters, frozen where it is.
    pub(super) fn of_transformer(&self, specs: Vec<ParamSpec>) -> Vec<ParamSpec> {
        frozen_if(self.frozen.transformer, specs)
    }

    /// Returns the parameters of the encoder of language, frozen where it is.
    pub(super) fn of_language(&self, specs: Vec<ParamSpec>) -> Vec<ParamSpec> {
        frozen_if(self.frozen.language, specs)
    }
}

fn frozen_if(is_frozen: bool, specs: Vec<ParamSpec>) -> Vec<ParamSpec> {
    if is_frozen { specs.into_iter().map(ParamSpec::frozen).collect() } else { specs }
}

/// Returns the distribution of `xavier_uniform_` for random weights of a map of so many inputs and outputs.
pub(super) fn xavier(inputs: i64, outputs: i64) -> Init {
    Init::Uniform((6.0 / (inputs + outputs) as f64).sqrt())
}

/// Returns the same parameters, the first of which starts as `init`.
pub(super) fn starting(mut specs: Vec<ParamSpec>, init: Init) -> Vec<ParamSpec> {
    if let Some(first) = specs.first_mut() {
        first.init = init;
    }
    specs
}
