//! Training data, and how samples become model inputs.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Audio, ImageLimits, JsonMap, Pack, Template, TrainFile, VideoLimits};

/// Training data, and how samples become model inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// Files of training samples, mixed by weight: `my.jsonl`, or `[{ path: my.jsonl, weight: 2 }, other.parquet]`.
    #[schemars(length(min = 1))]
    pub train: Vec<TrainFile>,
    /// Sets the meaning of `weight` of a data set. `sets`: the share of the set in the samples that are read, whatever its size;
    /// `samples`: how often each of its samples is read, relative to those of other sets, so that with equal weights every sample is
    /// read once per epoch.
    #[serde(default)]
    pub mix: Mix,
    /// Read samples in random order, a new order each epoch.
    #[serde(default = "yes")]
    pub shuffle: bool,
    /// Number of blocks (shards, row groups, whole files of lines) whose samples are shuffled together. Blocks are read in random
    /// order, and this many are open at once.
    #[serde(default = "window")]
    #[schemars(range(min = 1, max = 4096))]
    pub shuffle_window: usize,
    /// Folder that caches the sample counts of shards, so that a data set is counted once; `null`: the user's cache folder. A count
    /// is reused while the file's size and modification time are unchanged.
    #[serde(default)]
    pub index_dir: Option<PathBuf>,
    /// What to do if the data files are not those that a resumed run started with.
    #[serde(default)]
    pub on_change: OnChange,
    /// Packing of samples into sequences.
    #[serde(default)]
    pub pack: Pack,
    /// Size of images; overrides the model's preprocessor config.
    #[serde(default)]
    pub image: ImageLimits,
    /// Number and size of video frames; overrides the model's video preprocessor config.
    #[serde(default)]
    pub video: VideoLimits,
    /// Limits on the length of recordings, or of the segments taken from them, and random augmentation of training recordings.
    #[serde(default)]
    pub audio: Audio,
    /// Chat template: from the model directory, or built in.
    #[serde(default)]
    pub template: Template,
    /// Variables of the chat template for every sample: `{ enable_thinking: false }`; a sample's own `chat_template_kwargs` take
    /// precedence.
    #[serde(default)]
    pub template_kwargs: JsonMap,
    /// System message of conversations that have none, also of those of `eval` and of prompts to a checkpoint of the run; `null`: none.
    /// `system` of a data set in `train` takes precedence.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub system: Option<String>,
    /// Name of a sample maker that your own program registers; `null`: the model's built-in one.
    #[serde(default)]
    pub maker: Option<String>,
    /// Diffusion models: probability that a sample is trained without its prompt, for guidance; `null`: none.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub caption_dropout: Option<f64>,
    /// Diffusion models: probability that a sample is trained without the pictures that it is given: the first and last frame of I2V and
    /// FLF2V, and pictures to edit. It is drawn independently of `caption_dropout`. `null`: none.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub condition_dropout: Option<f64>,
    /// Diffusion models: weight the loss by the `mask` field of each record, an image of the same size as its picture or clip. Each
    /// token is weighted by the brightness of its part of the mask, and the loss is the weighted mean; a record without a mask has
    /// full weight.
    #[serde(default)]
    pub masks: bool,
    /// Limits on bad samples. Bad samples are skipped and listed; above a limit the run ends.
    #[serde(default)]
    pub on_bad_sample: BadSamples,
    /// Samples to hold out of `data.train` and evaluate as the set `val` of `eval`: a fraction if below 1, else a number. Of LeRobot
    /// data sets whole episodes are held out, and counted. The selection does not depend on the seed.
    #[serde(default)]
    #[schemars(range(min = 0.0))]
    pub val_size: f64,
}

/// Says what the weights of data sets mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Mix {
    // Shares of the sets.
    #[default]
    Sets,
    // Shares of each sample of the sets.
    Samples,
}

impl Data {
    /// Returns the share of data set `set`, which has so many samples, relative to those of the others.
    pub fn share(&self, set: usize, num_samples: u64) -> f64 {
        let weight = self.train[set].weight;
        match self.mix {
            Mix::Sets => weight,
            Mix::Samples => weight * num_samples as f64,
        }
    }
}

/// The treatment of data files that are not those that a resumed run started with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum OnChange {
    // Do not start, and name the file.
    #[default]
    Refuse,
    // Continue at the same position in the new order.
    Accept,
}

/// Limits on bad samples, above which the run ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BadSamples {
    /// Largest fraction of bad samples, checked once 100 samples have been read.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub max_fraction: f64,
    /// Largest number of consecutive bad samples.
    #[schemars(range(min = 1))]
    pub max_consecutive: usize,
}

impl Default for BadSamples {
    fn default() -> Self {
        Self { max_fraction: 0.01, max_consecutive: 100 }
    }
}

#[cfg(test)]
impl Data {
    /// Returns the data of these files, with defaults for everything else.
    pub fn of_files(train: Vec<TrainFile>) -> Self {
        Self {
            train,
            mix: Mix::Sets,
            shuffle: true,
            shuffle_window: window(),
            index_dir: None,
            on_change: OnChange::Refuse,
            pack: Pack::default(),
            image: ImageLimits::default(),
            video: VideoLimits::default(),
            audio: Audio::default(),
            template: Template::FromModel,
            template_kwargs: JsonMap::default(),
            system: None,
            maker: None,
            caption_dropout: None,
            condition_dropout: None,
            masks: false,
            on_bad_sample: BadSamples::default(),
            val_size: 0.0,
        }
    }
}

fn window() -> usize {
    16
}

fn yes() -> bool {
    true
}
