//! Samples that a diffusion model generates during training, and how they are read.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{FrameSize, Source};

/// Pictures or clips generated from prompts during the run, in `run.dir/samples`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sampling {
    /// File or folder of the prompts, a pattern or a URL, as `eval.path`, in any format of `data.train`, or a `.txt` file with a prompt on
    /// each line; the pictures and clips of its records serve as conditions and as references to measure the result.
    pub prompts: PathBuf,
    /// Use the first N prompts; `null`: all.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub max_prompts: Option<u64>,
    /// Generate samples before the first step, every N steps, and after the last one; 0 without `every_epochs`: only after the last one.
    #[serde(default)]
    pub every_steps: u64,
    /// Instead of `every_steps`, with `train.epochs`: generate samples every N epochs, such as 1 or 0.5, in steps rounded up.
    #[serde(default)]
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0.0))]
    pub every_epochs: Option<f64>,
    /// Sampling algorithm; `null`: `unipc` if the model's scheduler config names it, else `euler`.
    #[serde(default)]
    pub sampler: Option<Sampler>,
    /// Number of sampler steps.
    #[serde(default = "steps")]
    #[schemars(range(min = 1, max = 1000))]
    pub steps: usize,
    /// Guidance scale: how far a step goes from the prediction for the negative prompt toward, and beyond, that for the prompt. 1:
    /// the prompt alone, in one pass. With two transformers: `[high noise, low noise]`.
    #[serde(default = "guidance")]
    #[schemars(length(min = 1, max = 2), inner(range(min = 0.0)), extend("x-one-or-more" = true))]
    pub guidance: Vec<f64>,
    /// The prompt that guidance leads away from; `null`: the prompt of dropped captions, which is empty for Wan, as in Diffusers, and a
    /// space for Qwen-Image.
    #[serde(default)]
    pub negative: Option<String>,
    /// Shift of the sampler's noise levels; `null`: from the model's scheduler config, else 1.
    #[serde(default)]
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub shift: Option<f64>,
    /// Rows and columns of the result, such as `480x832`; `null`: those of the prompt's picture or clip.
    #[serde(default)]
    pub size: Option<FrameSize>,
    /// Number of frames of the result; `null`: that of the prompt's clip, or 1 for a picture.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub frames: Option<usize>,
    /// Seed of the noise; `null`: `run.seed`. The noise of a prompt is the same each time.
    #[serde(default)]
    pub seed: Option<u64>,
    /// Use the averaged weights if `train.ema` is set.
    #[serde(default = "yes")]
    pub ema: bool,
}

/// Sampling algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Sampler {
    Euler,
    Unipc,
}

/// A model that reads the samples that a diffusion model generates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SampleReader {
    /// Directory or hub id of the reader, a model that answers questions about a picture.
    pub load: Source,
    /// The question asked about every picture.
    #[serde(default)]
    pub question: String,
    /// Rows and columns of the region to read, around the picture's center of brightness, such as `8x8`; `null`: the whole picture.
    #[serde(default)]
    pub window: Option<FrameSize>,
    /// Factor by which rows and columns are enlarged before a picture is read, with linear interpolation.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub enlarge: usize,
    /// Invert light strokes on a dark background to dark ones on white before a picture is read.
    #[serde(default)]
    pub ink_on_paper: bool,
    /// Rows and columns of a background on which the picture is placed, at the top left, before it is read, such as `32x32`;
    /// `null`: no background.
    #[serde(default)]
    pub paper: Option<FrameSize>,
}

fn steps() -> usize {
    30
}

fn guidance() -> Vec<f64> {
    vec![1.0]
}

fn yes() -> bool {
    true
}

fn one() -> usize {
    1
}
