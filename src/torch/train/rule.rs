//! Describes by which rule an optimizer changes a parameter.

use super::offload::Offload;
use crate::native::MOMENT_BLOCK;
use crate::params::{ParamSpec, Sharding, is_hidden_matrix};

/// Elements of a parameter below which its moments stay in float32 (`min_8bit_size` of bitsandbytes): they take next to nothing.
const MIN_8BIT_ELEMENTS: i64 = 4096;

/// Constants of the optimizer; the learning rate comes with each step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWConfig {
    pub betas: [f64; 2],
    pub eps: f64,
    pub weight_decay: f64,
}

/// The optimizer of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerConfig {
    pub adamw: AdamWConfig,
    pub method: OptimizerMethod,
    /// `None`: all of the state is on the pool's device.
    pub offload: Option<Offload>,
}

/// The method of the optimizer: AdamW, or AdamW with a variation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum OptimizerMethod {
    #[default]
    AdamW,
    /// AdamW, whose moments are bytes.
    AdamW8bit,
    /// Muon for the matrices of hidden layers.
    Muon(MuonConfig),
}

/// The constants of Muon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MuonConfig {
    pub momentum: f64,
    pub adjust: Adjust,
    /// Multiplies the learning rate.
    pub lr_ratio: f64,
}

/// The way in which the learning rate of Muon follows the shape of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adjust {
    Original,
    MatchRmsAdamw,
}

/// The rule that one parameter is changed by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rule {
    AdamW,
    AdamW8bit,
    Muon(MuonConfig),
}

impl From<AdamWConfig> for OptimizerConfig {
    fn from(adamw: AdamWConfig) -> Self {
        Self { adamw, method: OptimizerMethod::AdamW, offload: None }
    }
}

impl OptimizerMethod {
    /// Returns the sharding of a store that this method needs.
    pub fn sharding(self, sharding: Sharding) -> Sharding {
        if self == OptimizerMethod::AdamW8bit { sharding.in_blocks(MOMENT_BLOCK) } else { sharding }
    }

    /// Returns why a trained parameter cannot be changed so in the part that this rank has; `None` where it can.
    pub fn refuses(self, spec: &ParamSpec) -> Option<&'static str> {
        let is_cut = spec.shard.as_ref().is_some_and(|shard| !shard.cuts.is_empty());
        (self == OptimizerMethod::AdamW8bit && is_cut).then_some(
            "moments are rounded in blocks of 256 elements of a whole parameter, which tensor_parallel or expert_parallel would \
             split",
        )
    }

    /// Returns the rule of a parameter: small ones keep AdamW's moments in float32, and Muon is for matrices of hidden layers.
    pub(super) fn rule(self, spec: &ParamSpec) -> Rule {
        match self {
            Self::AdamW8bit if spec.whole_shape().iter().product::<i64>() >= MIN_8BIT_ELEMENTS => Rule::AdamW8bit,
            Self::Muon(muon) if is_hidden_matrix(spec) => Rule::Muon(muon),
            _ => Rule::AdamW,
        }
    }
}
