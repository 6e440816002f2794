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
    /// Offload activations, and frozen weights under a budget, to host memory, overlapped with computation.
    pub offload: bool,
    /// Bandwidth limit between device and host in bytes per second, to test a plan on a machine without a bus; `null`: no limit.
    pub throttle: Option<Size>,
}

/// Bytes that one actor's activations may take on its device. What to keep, recompute or offload is planned from measurements of
/// the first micro-batches; the computed numbers do not change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ActivationBudget {
    /// Activation memory limit of an encoder actor; `null`: no limit, everything is kept.
    pub encoder: Option<Size>,
    /// Activation memory limit of a foundation actor; `null`: no limit, `model.foundation.recompute` applies.
    pub foundation: Option<Size>,
}

/// Bytes that one actor's weights may take on its device, including those of the layers in use. If they do not all fit, frozen
/// weights of linear layers are kept in host memory and copied to the device layer by layer before use; the computed numbers do not
/// change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WeightBudget {
    /// Weight memory limit of an encoder actor; `null`: no limit, all weights are on the device.
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
