//! Packing of samples into sequences.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Packing of samples into sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Pack {
    /// Longest packed sequence, in tokens.
    #[schemars(range(min = 1, max = 16777216))]
    pub max_tokens: usize,
    /// A sample that is longer than `max_tokens` is skipped and counted, or its first `max_tokens` tokens are kept (it
    /// is cut before a picture or video that would not be whole), or it ends the run. It is not a bad sample.
    pub too_long: TooLong,
    /// Packs are made of the samples of one `step`; of a `stream` over all steps, with a batch counted in packs; or `offline`, by
    /// best fit over all samples, once before the first step, into the folder `packs` of `run.dir`: packs are the samples then.
    pub mode: PackMode,
    /// Samples of the mixture that `offline` packs; `null`: one epoch, in which a set of little weight is not read whole.
    #[schemars(range(min = 1))]
    pub samples: Option<u64>,
    /// Samples that `stream` chooses from, read before the first step. `pools.data.memory` bounds what they take.
    #[schemars(range(min = 1, max = 1048576))]
    pub look_ahead: usize,
    /// Most pictures and videos of one pack; a sample with more is a bad sample; `null`: no limit.
    #[schemars(range(min = 1))]
    pub max_images: Option<usize>,
    /// Most tokens of pictures and videos in one pack; a sample with more is a bad sample; `null`: no limit.
    #[schemars(range(min = 1))]
    pub max_visual_tokens: Option<usize>,
}

/// Says what becomes of a sample that is longer than a pack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum TooLong {
    // It is left out.
    #[default]
    Skip,
    // Its first tokens are kept.
    Truncate,
    // It ends the run.
    Error,
}

/// The time at which packs are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum PackMode {
    // Of the samples of one step.
    #[default]
    Step,
    // Of a window that moves over the stream.
    Stream,
    // Of all samples, before the first step.
    Offline,
}

impl Default for Pack {
    fn default() -> Self {
        Self {
            max_tokens: 2048,
            too_long: TooLong::Skip,
            mode: PackMode::Step,
            samples: None,
            look_ahead: 4096,
            max_images: None,
            max_visual_tokens: None,
        }
    }
}
