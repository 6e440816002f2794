//! Memory limits for activations between forward and backward.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::Size;

/// Memory limits for activations between forward and backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    /// Bytes that one actor's activations may take on its device.
    pub activation_budget: ActivationBudget,
    /// Offload activations to host memory, overlapped with the computation.
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

impl Default for Memory {
    fn default() -> Self {
        Self { activation_budget: ActivationBudget::default(), offload: true, throttle: None }
    }
}
