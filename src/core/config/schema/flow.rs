//! Settings of the training of a diffusion model: how much noise samples get, and what an error counts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::Shift;

/// The noise levels of training: σ from 0, the sample, to 1, noise alone. A step's levels are planned with its samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NoiseLevels {
    /// Density of σ before the shift: `uniform`; `logit_normal`, the sigmoid of a normal number; `mode` (Stable Diffusion 3);
    /// `beta`; `logsnr`, of which the logarithm of the ratio of signal to noise is normal; or `discrete`, a grid of 1000 even
    /// levels.
    pub density: Density,
    /// Mean of the normal number of `logit_normal` and `logsnr`; `null`: 0.
    pub mean: Option<f64>,
    /// Deviation of that number; `null`: 1.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub std: Option<f64>,
    /// Scale of `mode`, -1 to 1.75: above 0 prefers the middle; `null`: 1.29.
    #[schemars(range(min = -1.0, max = 1.75))]
    pub scale: Option<f64>,
    /// First parameter of `beta`; `null`: 1.
    #[schemars(range(max = 1e4), extend("exclusiveMinimum" = 0.0))]
    pub alpha: Option<f64>,
    /// Second parameter of `beta`; `null`: 1.
    #[schemars(range(max = 1e4), extend("exclusiveMinimum" = 0.0))]
    pub beta: Option<f64>,
    /// The shift s, which makes s·σ / (1 + (s − 1)·σ) of a level: above 1 there is more noise. `auto`: by the tokens of the
    /// picture, as the model's scheduler config says, else as Qwen-Image has it.
    pub shift: Shift,
    /// Lowest level. The density is cut off there and keeps its shape.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min: f64,
    /// Highest level.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub max: f64,
    /// Spread the levels of a step evenly over the density: each of B samples has its own of B equally likely ranges.
    pub stratify: bool,
}

/// Density of the noise levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Density {
    Uniform,
    #[default]
    LogitNormal,
    Mode,
    Beta,
    Logsnr,
    Discrete,
}

/// The loss of a diffusion model: the error of the predicted velocity, in float32, the mean over a sample's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FlowLoss {
    /// Error of a number: its square, or one of three that grow more slowly where it is large.
    pub kind: LossKind,
    /// The error from which on `huber`, `pseudo_huber` and `smooth_l1` grow more slowly; `null`: 1.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub delta: Option<f64>,
    /// Weight of a sample by its noise level σ: `none`; `bell`, around 1/2 (DiffSynth); `sigma_sqrt`, σ⁻²; `cosmap`,
    /// 2 / (π(1 − 2σ + 2σ²)); `linear`, 1 + slope·σ; `min_snr`, min(((1 − σ)/σ)², gamma)·σ².
    pub weight: LossWeight,
    /// The gamma of `min_snr`; `null`: 5.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub gamma: Option<f64>,
    /// The slope of `linear`; `null`: 1.
    #[schemars(range(min = 0.0))]
    pub slope: Option<f64>,
    /// The loss is the mean over samples, so that a long clip counts as much as a picture, or over their tokens.
    pub per: Per,
}

/// Error of one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum LossKind {
    #[default]
    Mse,
    Huber,
    PseudoHuber,
    #[serde(rename = "smooth_l1")]
    SmoothL1,
}

/// Weight of a sample by its noise level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum LossWeight {
    #[default]
    None,
    Bell,
    SigmaSqrt,
    Cosmap,
    Linear,
    MinSnr,
}

/// Says what the mean of the loss is taken over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Per {
    #[default]
    Sample,
    Token,
}

/// Says which of two transformers, for high and for low noise, are trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Experts {
    Both,
    High,
    Low,
}

impl Default for NoiseLevels {
    fn default() -> Self {
        Self {
            density: Density::LogitNormal,
            mean: None,
            std: None,
            scale: None,
            alpha: None,
            beta: None,
            shift: Shift::By(1.0),
            min: 0.0,
            max: 1.0,
            stratify: true,
        }
    }
}
