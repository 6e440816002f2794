//! Settings of recordings: limits on their length, and random augmentation of training recordings.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Limits on the length of recordings, or of the segments taken from them, and random augmentation of training recordings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Audio {
    /// Minimum length in seconds; a shorter recording is a bad sample.
    #[schemars(range(min = 0.0, max = 3600.0))]
    pub min_seconds: f64,
    /// Maximum length in seconds; a longer recording is a bad sample.
    #[schemars(range(max = 3600.0), extend("exclusiveMinimum" = 0.0))]
    pub max_seconds: f64,
    /// Maximum length in tokens; a longer recording is a bad sample. `null`: no limit.
    #[schemars(range(min = 1))]
    pub max_tokens: Option<usize>,
    /// Random augmentation of training recordings, drawn anew each time a sample is read; held-out recordings are not changed.
    /// `null`: none.
    pub augment: Option<AudioAugment>,
}

/// Limits on the length of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AudioLimits {
    pub min_seconds: f64,
    pub max_seconds: f64,
    pub max_tokens: Option<usize>,
}

/// Random augmentation of training recordings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AudioAugment {
    /// Play a recording at its own speed, or slower or faster by this fraction, each equally likely: 0.1 for 0.9, 1 and 1.1. The
    /// number of tokens changes. A recording that would become too long or too short keeps its speed, and so does the sound of a
    /// video.
    #[schemars(range(min = 0.0, max = 0.5))]
    pub speed: f64,
    /// Largest change of volume in decibels, up or down.
    #[schemars(range(min = 0.0, max = 60.0))]
    pub volume: f64,
    /// Background recordings to mix in. `null`: none.
    pub noise: Option<BackgroundNoise>,
    /// Fraction of a recording's frames to mask with spans of `mask_time_length` frames, if the spans do not overlap (SpecAugment,
    /// drawn as in transformers). 0: none.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub mask_time_prob: f64,
    /// Frames per span.
    #[schemars(range(min = 1))]
    pub mask_time_length: usize,
    /// Minimum number of spans per recording.
    pub mask_time_min_masks: usize,
    /// Fraction of the mel bins to mask, in all frames, with spans of `mask_feature_length` bins. 0: none.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub mask_feature_prob: f64,
    /// Mel bins per span.
    #[schemars(range(min = 1))]
    pub mask_feature_length: usize,
    /// Minimum number of spans of mel bins per recording.
    pub mask_feature_min_masks: usize,
    /// Value that fills a span.
    pub mask_fill: MaskFill,
}

/// Background recordings to mix into a sample's recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BackgroundNoise {
    /// A recording, or a folder of recordings, searched recursively.
    pub path: PathBuf,
    /// Probability that noise is added each time a sample is read.
    #[serde(default = "BackgroundNoise::always")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub prob: f64,
    /// Lowest and highest signal-to-noise ratio, in decibels.
    #[serde(default = "BackgroundNoise::usual")]
    pub snr: [f64; 2],
}

/// Value that fills a masked span of a log-mel spectrogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum MaskFill {
    // 0, as in transformers; this is not silence.
    #[default]
    Zero,
    // The minimum of the recording.
    Min,
    // The mean of the recording.
    Mean,
}

impl Audio {
    /// Returns the limits on the length of a recording.
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
