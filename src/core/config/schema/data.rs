//! Samples, and how they are turned into model inputs.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Samples, and how they are turned into model inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// Files of training samples, mixed by weight.
    #[schemars(length(min = 1))]
    pub train: Vec<TrainFile>,
    /// Visit samples in a random order, another one each epoch.
    #[serde(default = "yes")]
    pub shuffle: bool,
    /// How samples are packed into sequences.
    #[serde(default)]
    pub pack: Pack,
    /// Size of images; overrides the model's preprocessor config.
    #[serde(default)]
    pub image: ImageLimits,
    /// Size and number of the frames of videos; overrides the model's video preprocessor config.
    #[serde(default)]
    pub video: VideoLimits,
    /// Chat template: the model directory's own, or a built-in one.
    #[serde(default)]
    pub template: Template,
    /// When bad samples, which are skipped and listed, end the run.
    #[serde(default)]
    pub on_bad_sample: BadSamples,
}

/// One file of training samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrainFile {
    /// The file.
    pub path: PathBuf,
    /// Layout of a sample.
    #[serde(default)]
    pub format: Format,
    /// Relative share of this file in the mixture.
    #[serde(default = "one")]
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0.0))]
    pub weight: f64,
}

/// Layout of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Format {
    // One JSON object a line: `{"messages": […], "images": […], "videos": […]}`.
    #[default]
    Messages,
    // One JSON object a line: `{"text": …}`; not for `train.phase: sft`.
    Text,
    // A document a line, as it is; not for `train.phase: sft`.
    Plain,
}

/// How samples are packed into sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Pack {
    /// Longest packed sequence, in tokens; a longer sample is a bad sample.
    #[schemars(range(min = 1))]
    pub max_tokens: usize,
}

/// Size of images; `null`: as the model's preprocessor config says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ImageLimits {
    /// Smaller images are enlarged to this many pixels; `null`: as the preprocessor config says.
    #[schemars(range(min = 1))]
    pub min_pixels: Option<usize>,
    /// Larger images are reduced to this many pixels; `null`: as the preprocessor config says.
    #[schemars(range(min = 1))]
    pub max_pixels: Option<usize>,
    /// An image with a longer side, in pixels, is a bad sample.
    #[schemars(range(min = 1))]
    pub max_side: usize,
}

/// Frames of videos; `null`: as the model's video preprocessor config says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct VideoLimits {
    /// Frames a second that are taken of a video.
    #[schemars(range(max = 1000.0), extend("exclusiveMinimum" = 0.0))]
    pub fps: Option<f64>,
    /// Fewest frames of a video, if it has as many.
    #[schemars(range(min = 1))]
    pub min_frames: Option<usize>,
    /// Most frames of a video.
    #[schemars(range(min = 1))]
    pub max_frames: Option<usize>,
    /// Smaller frames are enlarged to this many pixels; of all frames together in Qwen3-VL and later.
    #[schemars(range(min = 1))]
    pub min_pixels: Option<usize>,
    /// Larger frames are reduced to this many pixels; of all frames together in Qwen3-VL and later.
    #[schemars(range(min = 1))]
    pub max_pixels: Option<usize>,
}

/// Which chat template renders messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Template {
    // The model directory's own.
    #[default]
    FromModel,
    // ChatML with Qwen-VL's pictures and videos.
    Qwen,
    Chatml,
    Llama2,
    Llama3,
    // DeepSeek-V2.
    DeepseekV2,
    // DeepSeek-V3 and later.
    Deepseek,
    Kimi,
    // InternLM2 and 2.5, InternVL2.5.
    Internlm2,
    Ernie,
    Minimax,
    // GLM-4.5 and later.
    Glm,
}

/// When bad samples end the run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BadSamples {
    /// Largest fraction of bad samples.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub max_fraction: f64,
    /// Most bad samples in a row.
    #[schemars(range(min = 1))]
    pub max_consecutive: usize,
}

impl Default for Pack {
    fn default() -> Self {
        Self { max_tokens: 2048 }
    }
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self { min_pixels: None, max_pixels: None, max_side: 16384 }
    }
}

impl Default for BadSamples {
    fn default() -> Self {
        Self { max_fraction: 0.01, max_consecutive: 100 }
    }
}

fn yes() -> bool {
    true
}

fn one() -> f64 {
    1.0
}
