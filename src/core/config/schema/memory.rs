//! Memory limits for activations between forward and backward, and for weights.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::Size;

/// Memory limits for activations between forward and backward, and for weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    /// Bytes that one actor's activations may take on its device.
    pub activation_budget: ActivationBudget,
    /// Bytes that one actor's weights may take on its device.
    pub weight_budget: WeightBudget,
    /// Offload activations, and frozen weights under a budget, to host memory, overlapped with the computation.
    pub offload: bool,
    /// Limit of bytes a second between device and host, to try a plan out on a machine without a bus; `null`: no limit.
    pub throttle: Option<Size>,
}

/// Bytes that one actor's activations may take on its device. What each operation keeps, computes again or moves to the
/// host is then planned from what the first micro-batches took; the numbers do not change by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ActivationBudget {
    /// Activation memory limit of one encoder process; `null`: no limit, everything is kept.
    pub encoder: Option<Size>,
    /// Activation memory limit of a foundation actor; `null`: no limit, `model.foundation.recompute` holds.
    pub foundation: Option<Size>,
}

/// Bytes that one actor's weights may take on its device, those of the layers in use among them. Where all do not fit, frozen
/// weights of linear maps lie in the host's memory, layer by layer, and come to the device before they are read; the numbers
/// do not change by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WeightBudget {
    /// Weight memory limit of one encoder process; `null`: no limit, all weights are on the device.
    pub encoder: Option<Size>,
    /// Weight memory limit of a foundation actor; `null`: no limit, all weights are on the device.
    pub foundation: Option<Size>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            activation_budget: ActivationBudget::default(),
            weight_budget: WeightBudget::default(),
            offload: true,
            throttle: None,
        }
    }
}
