//! Preference learning: from pairs of answers, or from labeled single answers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Preference learning: from pairs of answers to one prompt, of which one is preferred, or from single answers labeled good or bad.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Preference {
    /// The loss: `sigmoid` is DPO; `robust`, `hinge`, `ipo`, `apo_zero` and `apo_down` also use a reference model; `orpo` and
    /// `simpo` use none. `kto` learns from single answers, labeled good or bad, with a reference model.
    pub loss: PreferenceLoss,
    /// Strength of the pull toward the reference: larger stays closer. `null`: 0.1; for `simpo` 2.
    #[schemars(range(max = 1e4), extend("exclusiveMinimum" = 0.0))]
    pub beta: Option<f64>,
    /// Assumed fraction of pairs whose preference is reversed, for `sigmoid` and `robust`; `null`: 0.
    #[schemars(range(min = 0.0, max = 0.5))]
    pub label_smoothing: Option<f64>,
    /// Margin of `simpo`; `null`: 1.
    #[schemars(range(min = 0.0, max = 1e4))]
    pub gamma: Option<f64>,
    /// Weight of the chosen answer's negative log-likelihood, averaged over its tokens; `null`: 1 for `orpo`, else 0.
    #[schemars(range(min = 0.0, max = 1e4))]
    pub nll_weight: Option<f64>,
    /// `kto`: number of consecutive answers that form one sample, over which the divergence from the reference is estimated: TRL's
    /// `per_device_train_batch_size`. `train.global_batch_size` counts groups; all answers of a group share a pack, each twice.
    /// `null`: 4.
    #[schemars(range(min = 2, max = 1024))]
    pub group_size: Option<usize>,
    /// `kto`: weight of the loss of good answers; `null`: 1.
    #[schemars(range(min = 0.0, max = 1e4))]
    pub desirable_weight: Option<f64>,
    /// `kto`: weight of the loss of bad answers; `null`: 1.
    #[schemars(range(min = 0.0, max = 1e4))]
    pub undesirable_weight: Option<f64>,
}

/// The preference loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum PreferenceLoss {
    #[default]
    Sigmoid,
    Robust,
    Hinge,
    Ipo,
    ApoZero,
    ApoDown,
    Orpo,
    Simpo,
    Kto,
}

impl Preference {
    /// Returns the number of answers in a group of `kto`.
    pub fn num_grouped(&self) -> usize {
        self.group_size.unwrap_or(4)
    }
}

impl PreferenceLoss {
    /// Returns whether the loss compares the model with a frozen reference.
    pub fn needs_reference(self) -> bool {
        !matches!(self, Self::Orpo | Self::Simpo)
    }
}
