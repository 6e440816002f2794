//! Samples, and how they are turned into model inputs.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Audio, ImageLimits, JsonMap, Pack, Template, TrainFile, VideoLimits};

/// Samples, and how they are turned into model inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// Files of training samples, mixed by weight: `my.jsonl`, or `[{ path: my.jsonl, weight: 2 }, other.parquet]`.
    #[schemars(length(min = 1))]
    pub train: Vec<TrainFile>,
    /// Visit samples in a random order, another one each epoch.
    #[serde(default = "yes")]
    pub shuffle: bool,
    /// Blocks (shards, row groups, whole files of lines) whose samples are mixed with each other; blocks follow in a
    /// random order. As many are held open.
    #[serde(default = "window")]
    #[schemars(range(min = 1, max = 4096))]
    pub shuffle_window: usize,
    /// Folder of the counts of samples in shards, so that a set is counted once; `null`: the user's cache folder. A
    /// count is used while the file's size and time of change are the same.
    #[serde(default)]
    pub index_dir: Option<PathBuf>,
    /// The action when files are not those that a resumed run began with.
    #[serde(default)]
    pub on_change: OnChange,
    /// Packing of samples into sequences.
    #[serde(default)]
    pub pack: Pack,
    /// Size of images; overrides the model's preprocessor config.
    #[serde(default)]
    pub image: ImageLimits,
    /// Size and number of the frames of videos; overrides the model's video preprocessor config.
    #[serde(default)]
    pub video: VideoLimits,
    /// Lengths of recordings, of segments where only a part is taken, and random changes of them.
    #[serde(default)]
    pub audio: Audio,
    /// Chat template: the model directory's own, or a built-in one.
    #[serde(default)]
    pub template: Template,
    /// Variables of the chat template, for every sample: `{ enable_thinking: false }`; a sample's own
    /// `chat_template_kwargs` go before these.
    #[serde(default)]
    pub template_kwargs: JsonMap,
    /// Maker of samples that a program of your own has registered under this name; `null`: the built-in one of the model.
    #[serde(default)]
    pub maker: Option<String>,
    /// Diffusion models: the part of visits at which a sample is trained without its prompt, for guidance; `null`: none.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub caption_dropout: Option<f64>,
    /// Diffusion models: read the field `mask` of records, a picture as large as its picture or clip. The error of a token counts
    /// as much as its part of the mask is bright, and the mean is over what counts; a record without a mask counts whole.
    #[serde(default)]
    pub masks: bool,
    /// Limits above which bad samples, which are skipped and listed, end the run.
    #[serde(default)]
    pub on_bad_sample: BadSamples,
    /// Samples that are set aside and evaluated as the set `val` of `eval`: below 1 a part of `data.train`, else a
    /// number. The same ones for every seed.
    #[serde(default)]
    #[schemars(range(min = 0.0))]
    pub val_size: f64,
}

/// The action when files are not those that a resumed run began with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum OnChange {
    // The run does not start, and the file is named.
    #[default]
    Refuse,
    // The run goes on at its position in the new order.
    Accept,
}

/// The limits above which bad samples end the run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BadSamples {
    /// Largest fraction of bad samples, judged once 100 samples were read.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub max_fraction: f64,
    /// Most bad samples in a row.
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
    /// The data of these files, everything else as by default.
    pub fn of_files(train: Vec<TrainFile>) -> Self {
        Self {
            train,
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
            maker: None,
            caption_dropout: None,
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
