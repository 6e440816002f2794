//! Settings of recordings: how long they may be, and random changes of those that are trained on.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Lengths of recordings, of segments where only a part is taken, and random changes of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Audio {
    /// A shorter recording, in seconds, is a bad sample.
    #[schemars(range(min = 0.0, max = 3600.0))]
    pub min_seconds: f64,
    /// A longer recording, in seconds, is a bad sample.
    #[schemars(range(max = 3600.0), extend("exclusiveMinimum" = 0.0))]
    pub max_seconds: f64,
    /// A recording of more tokens is a bad sample; `null`: no limit.
    #[schemars(range(min = 1))]
    pub max_tokens: Option<usize>,
    /// Random changes of training recordings, drawn for each visit to a sample; held-out recordings stay as they are. `null`: none.
    pub augment: Option<AudioAugment>,
}

/// The lengths that a recording may have.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AudioLimits {
    pub min_seconds: f64,
    pub max_seconds: f64,
    pub max_tokens: Option<usize>,
}

/// Random changes of training recordings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AudioAugment {
    /// A recording is played at its own speed, or by so much of it slower or faster, each as likely: 0.1 for 0.9, 1 and 1.1. Its number
    /// of tokens changes. One that would become too long or too short keeps its speed, and so does the sound of a video.
    #[schemars(range(min = 0.0, max = 0.5))]
    pub speed: f64,
    /// Decibels by which a recording becomes louder or softer at most.
    #[schemars(range(min = 0.0, max = 60.0))]
    pub volume: f64,
    /// Recordings that are heard behind the sample's. `null`: none.
    pub noise: Option<BackgroundNoise>,
    /// The part of a recording's frames that spans of `mask_time_length` frames cover, where they do not overlap (SpecAugment, as
    /// transformers draws it). 0: none.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub mask_time_prob: f64,
    /// Frames of a span.
    #[schemars(range(min = 1))]
    pub mask_time_length: usize,
    /// Spans that a recording has at least.
    pub mask_time_min_masks: usize,
    /// The part of the mel bins that spans of `mask_feature_length` bins cover in all frames. 0: none.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub mask_feature_prob: f64,
    /// Mel bins of a span.
    #[schemars(range(min = 1))]
    pub mask_feature_length: usize,
    /// Spans of mel bins that a recording has at least.
    pub mask_feature_min_masks: usize,
    /// What stands in a span.
    pub mask_fill: MaskFill,
}

/// Recordings that are heard behind a sample's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BackgroundNoise {
    /// A recording, or a folder of recordings, also in folders within.
    pub path: PathBuf,
    /// The part of visits at which noise is added.
    #[serde(default = "BackgroundNoise::always")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub prob: f64,
    /// The smallest and the largest signal-to-noise ratio, in decibels.
    #[serde(default = "BackgroundNoise::usual")]
    pub snr: [f64; 2],
}

/// What stands in a masked span of a log-mel spectrogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum MaskFill {
    // 0, as in transformers; it is not silence.
    #[default]
    Zero,
    // The least value of the recording.
    Min,
    // The mean of the recording.
    Mean,
}

impl Audio {
    /// The lengths that a recording may have.
    pub fn limits(&self) -> AudioLimits {
        let Self { min_seconds, max_seconds, max_tokens, .. } = *self;
        AudioLimits { min_seconds, max_seconds, max_tokens }
    }
}

impl BackgroundNoise {
    fn always() -> f64 {
        1.0
    }

    fn usual() -> [f64; 2] {
        [0.0, 20.0]
    }
}

impl Default for Audio {
    fn default() -> Self {
        Self { min_seconds: 0.1, max_seconds: 30.0, max_tokens: None, augment: None }
    }
}

impl Default for AudioLimits {
    fn default() -> Self {
        Audio::default().limits()
    }
}

impl Default for AudioAugment {
    fn default() -> Self {
        Self {
            speed: 0.0,
            volume: 0.0,
            noise: None,
            mask_time_prob: 0.0,
            mask_time_length: 10,
            mask_time_min_masks: 2,
            mask_feature_prob: 0.0,
            mask_feature_length: 10,
            mask_feature_min_masks: 0,
            mask_fill: MaskFill::default(),
        }
    }
}
