//! Samples, and how they are turned into model inputs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::JsonMap;
use crate::config::Area;

/// Samples, and how they are turned into model inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// Files of training samples, mixed by weight: `[{ path: my.jsonl }]`.
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
    /// Lengths of recordings, of segments where only a part is taken.
    #[serde(default)]
    pub audio: AudioLimits,
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

/// One data set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrainFile {
    /// Files of one kind: a file, a folder, a glob, names with `{000..099}`, a URL of an object store, or a list of
    /// these.
    pub path: Paths,
    /// Layout of a sample; `auto`: as the first sample shows. What holds the samples (JSON lines, a JSON array,
    /// Parquet, WebDataset or Energon shards) follows from the file's name.
    #[serde(default)]
    pub format: Format,
    /// Names of fields where they differ from the format's: `{messages: dialogue, images: picture}`.
    #[serde(default)]
    pub columns: BTreeMap<String, String>,
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
    // As the first sample shows.
    #[default]
    #[serde(alias = "webdataset", alias = "parquet")]
    Auto,
    // `{"messages": [{"role": …, "content": …}], "images": […], "videos": […], "tools": […]}`.
    Messages,
    // Two answers to one prompt, for `train.preference`: `{"prompt": …, "chosen": …, "rejected": …}`, texts or messages; `prompt`
    // may be left out where both have it, or be `conversations` or `instruction` with `input`.
    Pairs,
    // Single answers that are good or bad, for `train.preference.loss: kto`: `{"prompt": …, "completion": …, "label": true}`, or a
    // record of `messages`, `sharegpt` or `alpaca` with `label` or `kto_tag`.
    Labeled,
    // `{"conversations": [{"from": "human", "value": …}], "system": …, "tools": …}`.
    Sharegpt,
    // As `sharegpt`, with `image` or `video`.
    Llava,
    // `{"instruction": …, "input": …, "output": …, "system": …, "history": …}`.
    Alpaca,
    // A recording and what is said in it: `{"audio_filepath": …, "text": …, "offset": …, "duration": …}` (NeMo's manifests), or
    // `{"audio": …, "text": …}` (speech data sets of Hugging Face).
    Transcripts,
    // Megatron-Energon's samples: `{"texts": …, "media": …, "name": …}`, or fields by `dataset.yaml`.
    Energon,
    // Packs that were made ahead of time.
    Packed,
    // Pictures and clips with captions, for diffusion models: a record has `image`, `video`, `file_name`, `image_path` or
    // `video_path`, and `prompt`, `text`, `caption` or `cap`; or a folder of files, each with its caption in a `.txt`.
    Captioned,
    // Recorded episodes of robots: a folder with `meta/info.json`, of version 2.0, 2.1 or 3.0.
    Lerobot,
    // `{"text": …}`; not for `train.phase: sft`.
    Text,
    // A document a line, as it is; not for `train.phase: sft`.
    Plain,
}

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
    /// Packs are made of the samples of one `step`, or of a `stream` over all steps, with a batch counted in packs.
    pub mode: PackMode,
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
    /// An image with more pixels, before it is reduced, is a bad sample; so is a video of such frames.
    #[schemars(range(min = 1))]
    pub max_decoded_pixels: usize,
    /// Diffusion models: pictures with more pixels are reduced to these, `1024x1024` or their number; smaller ones keep their
    /// size. Sides are cut to whole patches. `null`: no limit.
    pub area: Option<Area>,
}

/// Frames of videos; `null`: as the model's video preprocessor config says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct VideoLimits {
    /// Frames a second that are taken of a video; `null` for a diffusion model: 24 for TI2V-5B, 16 for other models of Wan.
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
    /// Give the sound of an MP4 file to a model that hears videos (Qwen2.5-Omni, Qwen3-Omni), in time with the frames.
    pub sound: bool,
    /// Diffusion models: frames with more pixels are reduced to these, `480x832` or their number; `null`: no limit.
    pub area: Option<Area>,
    /// Diffusion models: most frames of a clip at `fps`. The number is made one more than a multiple of the autoencoder's
    /// frames; `null`: all.
    #[schemars(range(min = 1))]
    pub frames: Option<usize>,
    /// Diffusion models: the frames of a longer video. `head`: its first; `middle`; `sliding`: from anywhere, by the visit;
    /// `chunks`: one of the pieces that it is cut into, by the visit; `uniform`: evenly spread over all of it; `whole`:
    /// all, and a longer video is a bad sample. `null`: `head`.
    pub take: Option<Take>,
    /// TI2V-5B: the part of visits to a clip that are given its first frame, which is then neither noised nor in the loss.
    /// Above 0, the clips of `sample.prompts` begin with the pictures of their records. `null`: none.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub first_frame: Option<f64>,
}

/// Says which frames of a longer video are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Take {
    #[default]
    Head,
    Middle,
    Sliding,
    Chunks,
    Uniform,
    Whole,
}

/// Lengths of recordings, of segments where only a part is taken.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AudioLimits {
    /// A shorter recording, in seconds, is a bad sample.
    #[schemars(range(min = 0.0, max = 3600.0))]
    pub min_seconds: f64,
    /// A longer recording, in seconds, is a bad sample.
    #[schemars(range(max = 3600.0), extend("exclusiveMinimum" = 0.0))]
    pub max_seconds: f64,
    /// A recording of more tokens is a bad sample; `null`: no limit.
    #[schemars(range(min = 1))]
    pub max_tokens: Option<usize>,
}

/// Says which chat template renders messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Template {
    // The model directory's own.
    #[default]
    FromModel,
    // ChatML with Qwen-VL's pictures and videos.
    Qwen,
    // ChatML in which the recordings of a chat are numbered: the published one of Qwen2-Audio.
    #[serde(rename = "qwen2_audio")]
    Qwen2Audio,
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
    // Gemma 1 to 3.
    Gemma,
    // PaliGemma 1 and 2.
    Paligemma,
}

/// The limits above which bad samples end the run.
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
        Self {
            max_tokens: 2048,
            too_long: TooLong::Skip,
            mode: PackMode::Step,
            look_ahead: 4096,
            max_images: None,
            max_visual_tokens: None,
        }
    }
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self { min_pixels: None, max_pixels: None, max_side: 16384, max_decoded_pixels: 1 << 26, area: None }
    }
}

impl Default for AudioLimits {
    fn default() -> Self {
        Self { min_seconds: 0.1, max_seconds: 30.0, max_tokens: None }
    }
}

impl Default for BadSamples {
    fn default() -> Self {
        Self { max_fraction: 0.01, max_consecutive: 100 }
    }
}

/// Describes where a data set lies: one path or several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "OneOrMore")]
#[schemars(inline, with = "Vec<String>", extend("x-one-or-more" = true, "minItems" = 1))]
pub struct Paths(pub Vec<String>);

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl From<OneOrMore> for Paths {
    fn from(paths: OneOrMore) -> Self {
        match paths {
            OneOrMore::One(path) => Self(vec![path]),
            OneOrMore::More(paths) => Self(paths),
        }
    }
}

impl From<&Path> for Paths {
    fn from(path: &Path) -> Self {
        Self(vec![path.to_string_lossy().into_owned()])
    }
}

impl From<PathBuf> for Paths {
    fn from(path: PathBuf) -> Self {
        path.as_path().into()
    }
}

impl From<&str> for Paths {
    fn from(path: &str) -> Self {
        Self(vec![path.to_owned()])
    }
}

impl AsRef<Path> for Paths {
    /// The first.
    fn as_ref(&self) -> &Path {
        Path::new(self.0.first().map_or("", String::as_str))
    }
}

impl TrainFile {
    /// A data set whose layout is as its first sample shows.
    pub fn new(path: impl Into<Paths>) -> Self {
        Self { path: path.into(), format: Format::Auto, columns: BTreeMap::new(), weight: 1.0 }
    }

    /// Returns what messages call it: the first path, and that there are more.
    pub fn name(&self) -> PathBuf {
        match self.path.0.as_slice() {
            [] => PathBuf::from("(no path)"),
            [one] => one.into(),
            [first, more @ ..] => format!("{first} and {} more", more.len()).into(),
        }
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
            audio: AudioLimits::default(),
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

fn one() -> f64 {
    1.0
}
