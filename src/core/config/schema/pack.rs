//! Packing of samples into sequences.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Packing of samples into sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Pack {
    /// Maximum length of a packed sequence, in tokens.
    #[schemars(range(min = 1, max = 16777216))]
    pub max_tokens: usize,
    /// What to do with a sample longer than `max_tokens`: skip and count it, keep its first `max_tokens` tokens (it is cut before a
    /// picture or video that would not be complete), or end the run. It is not a bad sample.
    pub too_long: TooLong,
    /// What packs are made from: the samples of one `step`; a `stream` over all steps, with a batch counted in packs; or `offline`,
    /// all samples at once, by best fit before the first step, into the folder `packs` of `run.dir`: the samples of the run are
    /// then the packs.
    pub mode: PackMode,
    /// Number of samples of the mixture to pack with `offline`; `null`: one epoch, in which a data set of low weight is not read
    /// completely.
    #[schemars(range(min = 1))]
    pub samples: Option<u64>,
    /// Number of samples that `stream` chooses from, read before the first step. `pools.data.memory` limits their memory.
    #[schemars(range(min = 1, max = 1048576))]
    pub look_ahead: usize,
    /// Maximum number of pictures and videos in one pack; a sample with more is a bad sample; `null`: no limit.
    #[schemars(range(min = 1))]
    pub max_images: Option<usize>,
    /// Maximum number of picture and video tokens in one pack; a sample with more is a bad sample; `null`: no limit.
    #[schemars(range(min = 1))]
    pub max_visual_tokens: Option<usize>,
}

/// The treatment of a sample that is longer than a pack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum TooLong {
    // The sample is left out.
    #[default]
    Skip,
    // Its first tokens are kept.
    Truncate,
    // It ends the run.
    Error,
}

/// The samples that packs are made from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum PackMode {
    // The samples of one step.
    #[default]
    Step,
    // A window that moves over the stream of samples.
    Stream,
    // All samples, before the first step.
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
