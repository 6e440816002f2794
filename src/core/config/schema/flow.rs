//! Settings for training a diffusion model: noise levels and loss.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::Shift;

/// Noise levels in training: σ from 0 (the sample) to 1 (pure noise). The levels of a step are planned with its samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NoiseLevels {
    /// Distribution of σ before the shift: `uniform`; `logit_normal`, the sigmoid of a normal variable; `mode` (Stable Diffusion
    /// 3); `beta`; `logsnr`, with a normally distributed log signal-to-noise ratio; or `discrete`, a grid of 1000 evenly spaced
    /// levels.
    pub density: Density,
    /// Mean of the normal variable of `logit_normal` and `logsnr`; `null`: 0.
    pub mean: Option<f64>,
    /// Standard deviation of that variable; `null`: 1.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub std: Option<f64>,
    /// Scale of `mode`, -1 to 1.75: values above 0 favor middle levels; `null`: 1.29.
    #[schemars(range(min = -1.0, max = 1.75))]
    pub scale: Option<f64>,
    /// First parameter of `beta`; `null`: 1.
    #[schemars(range(max = 1e4), extend("exclusiveMinimum" = 0.0))]
    pub alpha: Option<f64>,
    /// Second parameter of `beta`; `null`: 1.
    #[schemars(range(max = 1e4), extend("exclusiveMinimum" = 0.0))]
    pub beta: Option<f64>,
    /// The shift s maps a level σ to s·σ / (1 + (s − 1)·σ): above 1 there is more noise. `auto`: depends on the number of tokens of
    /// the picture, as the model's scheduler config says, else as in Qwen-Image.
    pub shift: Shift,
    /// Lowest level. The distribution is truncated there and keeps its shape, unless it is squeezed.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min: f64,
    /// Highest level.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub max: f64,
    /// Squeeze the whole distribution into the range from `min` to `max` instead of truncating it: σ becomes min + (max − min)·σ.
    pub squeeze: bool,
    /// Spread the levels of a step evenly over the distribution: each of B samples draws from its own of B equally likely ranges.
    pub stratify: bool,
}

/// Distribution of the noise levels.
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

/// Loss of a diffusion model: the error of the predicted velocity, in float32, averaged over the elements of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FlowLoss {
    /// Error of one element: its square, or one of three functions that grow more slowly for large errors.
    pub kind: LossKind,
    /// Error above which `huber`, `pseudo_huber` and `smooth_l1` grow more slowly; `null`: 1.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub delta: Option<f64>,
    /// Weight of a sample by its noise level σ: `none`; `bell`, centered on 1/2 (DiffSynth); `sigma_sqrt`, σ⁻²; `cosmap`, 2 / (π(1
    /// − 2σ + 2σ²)); `linear`, 1 + slope·σ; `min_snr`, min(((1 − σ)/σ)², gamma)·σ².
    pub weight: LossWeight,
    /// The gamma of `min_snr`; `null`: 5.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub gamma: Option<f64>,
    /// The slope of `linear`; `null`: 1.
    #[schemars(range(min = 0.0))]
    pub slope: Option<f64>,
    /// Average the loss over samples, so that a long clip counts as much as a picture, or over their tokens.
    pub per: Per,
}

/// Error of one element.
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

/// The unit that the loss is averaged over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Per {
    #[default]
    Sample,
    Token,
}

/// The latent that is trained on, of the distribution that the autoencoder gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Latents {
    #[default]
    Mean,
    Sample,
}

/// The transformers that are trained, of two: one for high and one for low noise.
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
            squeeze: false,
            stratify: true,
        }
    }
}
