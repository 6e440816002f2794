//! Samples that a diffusion model makes while it is trained, and how they are read.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{FrameSize, Source};

/// Pictures or clips that are made of prompts while the run goes on, in `run.dir/samples`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sampling {
    /// File or folder of the prompts, in any format of `data.train`; their pictures and clips are conditions and measure the result.
    pub prompts: PathBuf,
    /// Use the first N prompts; `null`: all.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub max_prompts: Option<u64>,
    /// Make samples before the first step, every N steps, and after the last one; 0: only after the last one.
    #[serde(default)]
    pub every_steps: u64,
    /// Way from noise to the sample; `null`: `unipc` where the model's scheduler config names it, else `euler`.
    #[serde(default)]
    pub sampler: Option<Sampler>,
    /// Steps of the sampler.
    #[serde(default = "steps")]
    #[schemars(range(min = 1, max = 1000))]
    pub steps: usize,
    /// Guidance: how far a step goes beyond what the negative prompt gives towards what the prompt gives. 1: the prompt
    /// alone, in one pass. Of two transformers `[high noise, low noise]`.
    #[serde(default = "guidance")]
    #[schemars(length(min = 1, max = 2), inner(range(min = 0.0)), extend("x-one-or-more" = true))]
    pub guidance: Vec<f64>,
    /// The prompt that guidance leads away from; `null`: the one of the model's pipeline.
    #[serde(default)]
    pub negative: Option<String>,
    /// Shift of the sampler's noise levels; `null`: as the model's scheduler config says, else 1.
    #[serde(default)]
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub shift: Option<f64>,
    /// Rows and columns of the result, such as `480x832`; `null`: those of the picture or clip of the prompt.
    #[serde(default)]
    pub size: Option<FrameSize>,
    /// Frames of the result; `null`: those of the clip of the prompt, 1 of a picture.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub frames: Option<usize>,
    /// Seed of the noise; `null`: `run.seed`. The noise of a prompt is the same at every step.
    #[serde(default)]
    pub seed: Option<u64>,
    /// Use the averaged weights where `train.ema` is set.
    #[serde(default = "yes")]
    pub ema: bool,
}

/// Way from noise to a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Sampler {
    Euler,
    Unipc,
}

/// A model that reads the samples that a diffusion model makes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SampleReader {
    /// Directory or hub id of the model that reads: one that answers a question about a picture.
    pub load: Source,
    /// The question about every picture.
    #[serde(default)]
    pub question: String,
    /// Rows and columns of the part that is read, around the center of a picture's light, such as `8x8`; `null`: all of it.
    #[serde(default)]
    pub window: Option<FrameSize>,
    /// A picture is read with so many times its rows and columns, interpolated linearly.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub enlarge: usize,
    /// Turn light strokes on a dark ground into dark ones on white before a picture is read.
    #[serde(default)]
    pub ink_on_paper: bool,
    /// Rows and columns of the ground on which a picture is read, at its top left, such as `32x32`; `null`: none around it.
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
