//! `meta/info.json`: which version a set has, its features, and where its files are.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};

use super::feature::{Dtype, Feature};
use super::names::INFO;
use super::template::PathTemplate;
use crate::data::error::DataError;
use crate::data::source::{HubPath, hub_cache};
use crate::files;

/// Features that every set has, which say where a frame is.
pub const PLACES: [&str; 5] = ["timestamp", "frame_index", "episode_index", "index", "task_index"];
/// Axes of a feature, and numbers of a frame of it, at most.
const MAX_AXES: usize = 8;
const MAX_WIDTH: usize = 1 << 20;

/// The layouts of sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// An episode a file, statistics of the whole set.
    V20,
    /// An episode a file, statistics of each.
    V21,
    /// Many episodes a file.
    V30,
}

/// The contents of `meta/info.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct Info {
    pub version: Version,
    pub robot_type: String,
    /// Frames a second.
    pub fps: f64,
    pub num_episodes: usize,
    pub num_frames: u64,
    /// Files of a folder.
    pub chunks_size: u64,
    pub data_path: PathTemplate,
    /// `None`: no feature is a video.
    pub video_path: Option<PathTemplate>,
    /// Features in the order of the file, those of [`PLACES`] left out.
    pub features: Vec<Feature>,
}

impl Version {
    /// Returns it as `codebase_version` has it, such as `v3.0`.
    pub fn name(self) -> &'static str {
        match self {
            Self::V20 => "v2.0",
            Self::V21 => "v2.1",
            Self::V30 => "v3.0",
        }
    }
}

/// Returns whether a folder is a LeRobot set, or a path of the hub names one that the cache has.
pub fn is_set(folder: &Path) -> bool {
    place(folder).is_ok_and(|folder| folder.join(INFO).is_file())
}

/// Returns the folder of a set: that of the cache for one of the hub, the path itself for another.
///
/// # Errors
/// Named by the path: it is not one of the hub, or the cache lacks it or a part of it.
pub fn place(path: &Path) -> Result<Cow<'_, Path>, DataError> {
    let wrong = |reason: String| DataError::file(path, reason);
    let Some(hub) = path.to_str().map(HubPath::parse).transpose().map_err(wrong)?.flatten() else {
        return Ok(path.into());
    };
    let folder = hub.find_episodes(&hub_cache()).map_err(wrong)?;
    folder.map(Cow::Owned).ok_or_else(|| wrong(format!("is not a LeRobot set: it has no {INFO}")))
}

impl Info {
    /// Reads the file of the set in `folder`, or of the set that a path of the hub names.
    ///
    /// # Errors
    /// Named by the file: missing, wrong, or of a version that is not read.
    pub fn read(folder: &Path) -> Result<Self, DataError> {
        let path = place(folder)?.join(INFO);
        let bytes = files::read(&path, files::MAX_TEXT_BYTES).map_err(|error| DataError::read(&path, error))?;
        let json: Json = serde_json::from_slice(&bytes).map_err(|error| DataError::file(&path, error))?;
        Self::of(&json).map_err(|reason| DataError::file(&path, reason))
    }

    fn of(json: &Json) -> Result<Self, String> {
        let number =
            |key: &str| json[key].as_u64().ok_or_else(|| format!("`{key}` is {}, not a whole number", json[key]));
        let template = |key: &str| match &json[key] {
            Json::String(text) => PathTemplate::parse(text).map(Some).map_err(|reason| format!("`{key}` {reason}")),
            Json::Null => Ok(None),
            other => Err(format!("`{key}` is {other}, not a path")),
        };
        let version = match json["codebase_version"].as_str() {
            Some("v2.0") => Version::V20,
            Some("v2.1") => Version::V21,
            Some("v3.0") => Version::V30,
            _ => {
                return Err(format!(
                    "`codebase_version` is {}; only v2.0, v2.1 and v3.0 are supported: convert the set with the \
                     scripts of an older lerobot",
                    json["codebase_version"]
                ));
            }
        };
        let fps = json["fps"].as_f64().filter(|fps| fps.is_finite() && *fps > 0.0);
        let features = json["features"].as_object().ok_or("has no `features`")?;
        let read = features.iter().filter(|(key, _)| !PLACES.contains(&key.as_str()));
        let features = read.map(|(key, feature)| of_json(key, feature)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            version,
            robot_type: json["robot_type"].as_str().unwrap_or_default().to_owned(),
            fps: fps.ok_or_else(|| format!("`fps` is {}, not a number above 0", json["fps"]))?,
            num_episodes: usize::try_from(number("total_episodes")?).map_err(|error| error.to_string())?,
            num_frames: number("total_frames")?,
            chunks_size: number("chunks_size").unwrap_or(1000).max(1),
            data_path: template("data_path")?.ok_or("has no `data_path`")?,
            video_path: template("video_path")?,
            features,
        })
    }

    /// Returns the feature of a key.
    pub fn feature(&self, key: &str) -> Option<&Feature> {
        self.features.iter().find(|feature| feature.key == key)
    }

    /// Keys of features that are pictures or videos, in the order of the file.
    pub fn cameras(&self) -> impl Iterator<Item = &Feature> {
        self.features.iter().filter(|feature| matches!(feature.dtype, Dtype::Image | Dtype::Video))
    }

    /// Keys of features that are videos.
    pub fn videos(&self) -> impl Iterator<Item = &str> {
        self.features.iter().filter(|feature| feature.dtype == Dtype::Video).map(|feature| feature.key.as_str())
    }

    /// Returns the file of rows with these numbers, which a row of the episodes names.
    ///
    /// # Errors
    /// The reason.
    pub fn data_file(&self, numbers: &[(&str, u64)]) -> Result<PathBuf, String> {
        self.data_path.fill(numbers, "").map_err(|reason| format!("data_path of {INFO} {reason}"))
    }

    /// Returns the file of a video with these numbers.
    ///
    /// # Errors
    /// The reason.
    pub fn video_file(&self, numbers: &[(&str, u64)], key: &str) -> Result<PathBuf, String> {
        let template =
            self.video_path.as_ref().ok_or_else(|| format!("{INFO} has the video {key} but no video_path"))?;
        template.fill(numbers, key).map_err(|reason| format!("video_path of {INFO} {reason}"))
    }

    /// Returns the numbers by which files of an episode are named where each has its own.
    pub fn of_episode(&self, episode: u64) -> [(&'static str, u64); 2] {
        [("episode_chunk", episode / self.chunks_size), ("episode_index", episode)]
    }
}

fn of_json(key: &str, feature: &Json) -> Result<Feature, String> {
    let wrong = |what: &str| format!("feature {key}: `{what}` is invalid: {:.80}", feature[what].to_string());
    let dtype = feature["dtype"].as_str().ok_or_else(|| wrong("dtype"))?;
    let axes = match &feature["shape"] {
        Json::Array(axes) if axes.len() <= MAX_AXES => axes.as_slice(),
        Json::Null => &[],
        _ => return Err(wrong("shape")),
    };
    let sizes = axes.iter().map(|size| size.as_u64().and_then(|size| usize::try_from(size).ok()));
    let shape = sizes.collect::<Option<Vec<usize>>>().ok_or_else(|| wrong("shape"))?;
    let width = shape.iter().try_fold(1usize, |width, &size| width.checked_mul(size));
    let dtype =
        Dtype::read(dtype, feature["info"]["video.is_depth_map"] == true || feature["info"]["is_depth_map"] == true);
    // Pictures have more numbers; they are bounded where they are decoded.
    if !matches!(dtype, Dtype::Image | Dtype::Video) && width.is_none_or(|width| width > MAX_WIDTH) {
        return Err(wrong("shape"));
    }
    Ok(Feature { key: key.to_owned(), dtype, shape, names: names(&feature["names"]) })
}

/// Returns a list of names, or a map of kinds to lists of names: those of all lists, in order.
fn names(json: &Json) -> Vec<String> {
    let text = |name: &Json| name.as_str().map_or_else(|| name.to_string(), str::to_owned);
    match json {
        Json::Array(names) => names.iter().map(text).collect(),
        Json::Object(kinds) => of_kinds(kinds, text),
        _ => Vec::new(),
    }
}

fn of_kinds(kinds: &Map<String, Json>, text: impl Fn(&Json) -> String) -> Vec<String> {
    // As `{"motors": ["shoulder", …]}`, or as `{"delta_x": 0, …}`, where the keys are the names.
    match kinds.values().all(Json::is_array) {
        true => kinds.values().filter_map(Json::as_array).flatten().map(text).collect(),
        false => kinds.keys().cloned().collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn info() -> Json {
        json!({
            "codebase_version": "v3.0", "robot_type": "so100", "fps": 30, "total_episodes": 2, "total_frames": 9,
            "chunks_size": 1000, "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": null,
            "features": {
                "action": { "dtype": "float32", "shape": [2], "names": { "motors": ["a", "b"] } },
                "observation.state": { "dtype": "float32", "shape": [2], "names": { "x": 0, "y": 1 } },
                "timestamp": { "dtype": "float32", "shape": [1], "names": null },
            },
        })
    }

    #[test]
    fn features_have_names_and_places_are_no_features() {
        let read = Info::of(&info()).unwrap();
        assert_eq!((read.version, read.fps, read.num_frames), (Version::V30, 30.0, 9));
        assert_eq!(read.features.len(), 2);
        assert_eq!(read.feature("action").unwrap().names, ["a", "b"]);
        assert_eq!(read.feature("observation.state").unwrap().names, ["x", "y"]);
        assert_eq!(read.of_episode(2345), [("episode_chunk", 2), ("episode_index", 2345)]);
        assert!(read.video_file(&[], "cam").unwrap_err().contains("cam"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (key, value, part) in [
            ("codebase_version", json!("v1.6"), "v1.6"),
            ("fps", json!(0), "`fps` is 0"),
            ("total_frames", json!(-1), "`total_frames` is -1"),
            ("data_path", json!(null), "`data_path`"),
            ("features", json!({ "a": { "dtype": 3 } }), "feature a: `dtype` is invalid: 3"),
            ("features", json!({ "a": { "dtype": "float32", "shape": [1 << 30, 1 << 30] } }), "feature a: `shape`"),
        ] {
            let mut json = info();
            json[key] = value;
            let error = Info::of(&json).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
