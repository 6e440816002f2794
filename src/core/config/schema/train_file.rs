//! One data set: its location and the layout of its samples.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{Area, EpisodeRange};

/// One data set; a plain string is its `path`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-short" = "path"))]
pub struct TrainFile {
    /// Files of one kind: a file, a folder, a glob, names with `{000..099}`, a URL of an object store, or a list of these.
    pub path: Paths,
    /// Layout of a sample; `auto`: detected from the first sample. The container (JSON lines, a JSON array, Parquet, WebDataset or
    /// Energon shards) follows from the file name.
    #[serde(default)]
    pub format: Format,
    /// Field names that differ from those of the format: `{messages: dialogue, images: picture}`.
    #[serde(default)]
    pub columns: BTreeMap<String, String>,
    /// Folder, or URL of one in an object store, to which the paths of pictures, videos and recordings in the samples are relative;
    /// `null`: the folder of the file that names them.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub media_dir: Option<String>,
    /// Diffusion models: the caption of pictures and clips that have none, as DreamBooth's `instance_prompt`; `null`: without a
    /// caption of its own a sample is bad.
    #[serde(default)]
    pub caption: Option<String>,
    /// Diffusion models: pictures and frames of the set with more pixels are reduced to this size, `512x512` or a number of pixels;
    /// `null`: `data.image.area` or `data.video.area`. To learn pictures at several sizes, list their set several times.
    #[serde(default)]
    pub area: Option<Area>,
    /// System message of those conversations of the set that have none; `null`: that of `data.system`, if any.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub system: Option<String>,
    /// Relative share of this set in the mixture, or with `data.mix: samples` of each of its samples.
    #[serde(default = "one")]
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0.0))]
    pub weight: f64,
    /// LeRobot data sets: the episodes to use, as numbers from 0 and ranges: `[0-99, 120, 200-]`, where `200-` stands for all from
    /// number 200 on. `null`: all.
    #[serde(default)]
    #[schemars(length(min = 1, max = 65536), extend("x-one-or-more" = true))]
    pub episodes: Option<Vec<EpisodeRange>>,
    /// Use at most this many samples of the set, those that `select` says; each piece of a long text counts as one. `null`: all. For
    /// LeRobot data sets use `episodes`.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub max_samples: Option<u64>,
    /// Which samples `max_samples` keeps. `first`: the first ones of the set; `random`: one from each of as many parts of equal size, the
    /// same ones for every seed.
    #[serde(default)]
    pub select: Select,
}

/// Says which samples of a set are used if their number is limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Select {
    // The first ones, in the order of the files.
    #[default]
    First,
    // One from each of as many parts of equal size.
    Random,
}

/// Layout of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Format {
    // Detected from the first sample.
    #[default]
    #[serde(alias = "webdataset", alias = "parquet")]
    Auto,
    // `{"messages": [{"role": …, "content": …}], "images": […], "videos": […], "tools": […]}`.
    Messages,
    // Two answers to one prompt, for `train.preference`: `{"prompt": …, "chosen": …, "rejected": …}`, texts or messages; `prompt`
    // may be omitted if both answers contain it, or be `conversations` or `instruction` with `input`.
    Pairs,
    // Single answers labeled good or bad, for `train.preference.loss: kto`: `{"prompt": …, "completion": …, "label": true}`, or a
    // record of `messages`, `sharegpt` or `alpaca` with `label` or `kto_tag`.
    Labeled,
    // `{"conversations": [{"from": "human", "value": …}], "system": …, "tools": …}`.
    Sharegpt,
    // As `sharegpt`, with `image` or `video`.
    Llava,
    // `{"instruction": …, "input": …, "output": …, "system": …, "history": …}`.
    Alpaca,
    // A recording and its transcript: `{"audio_filepath": …, "text": …, "offset": …, "duration": …}` (NeMo manifests), or
    // `{"audio": …, "text": …}` (Hugging Face speech data sets); or a folder of recordings, each with its transcript in a `.txt` file.
    Transcripts,
    // Megatron-Energon samples: `{"texts": …, "media": …, "name": …}`, or fields mapped by `dataset.yaml`.
    Energon,
    // Packs made ahead of time.
    Packed,
    // Pictures and clips with captions, for diffusion models: records with `image`, `video`, `file_name`, `image_path` or
    // `video_path`, and `prompt`, `text`, `caption` or `cap`; or a folder of files, each with its caption in a `.txt` file.
    Captioned,
    // Recorded robot episodes: a folder with `meta/info.json`, version 2.0, 2.1 or 3.0.
    Lerobot,
    // `{"text": …}`; not for `train.phase: sft`.
    Text,
    // One document per line, unchanged; not for `train.phase: sft`.
    Plain,
}

/// The location of a data set: one path or several.
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
    /// Returns the first path.
    fn as_ref(&self) -> &Path {
        Path::new(self.0.first().map_or("", String::as_str))
    }
}

impl TrainFile {
    /// Returns a data set whose layout is detected from its first sample.
    pub fn new(path: impl Into<Paths>) -> Self {
        Self {
            path: path.into(),
            format: Format::Auto,
            columns: BTreeMap::new(),
            media_dir: None,
            caption: None,
            area: None,
            system: None,
            weight: 1.0,
            episodes: None,
            max_samples: None,
            select: Select::First,
        }
    }

    /// Returns its name in messages: the first path, and the number of further paths.
    pub fn name(&self) -> PathBuf {
        match self.path.0.as_slice() {
            [] => PathBuf::from("(no path)"),
            [one] => one.into(),
            [first, more @ ..] => format!("{first} and {} more", more.len()).into(),
        }
    }
}

fn one() -> f64 {
    1.0
}
