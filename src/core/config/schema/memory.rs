//! What activations may take between forward and backward.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::Size;

/// What activations may take between forward and backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    /// Bytes that one actor's activations may take on its device.
    pub activation_budget: ActivationBudget,
    /// Whether activations may go to the host's memory and come back, beside the computation.
    pub offload: bool,
    /// Bytes a second between device and host, not more: to try a plan out where there is no bus; `null`: as it is.
    pub throttle: Option<Size>,
}

/// Bytes that one actor's activations may take on its device. What each operation keeps, computes again or moves to the
/// host is then planned from what the first micro-batches took; the numbers do not change by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ActivationBudget {
    /// Of an encoder actor, over the units that it has encoded and not had back; `null`: no plan, all is kept.
    pub encoder: Option<Size>,
    /// Of a foundation actor; `null`: no plan, `model.foundation.recompute` holds.
    pub foundation: Option<Size>,
}

impl Default for Memory {
    fn default() -> Self {
        Self { activation_budget: ActivationBudget::default(), offload: true, throttle: None }
    }
}
