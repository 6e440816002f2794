//! `meta/modality.json` of GR00T's sets: names of groups of numbers of states and actions, of cameras and of texts.

use std::ops::Range;
use std::path::Path;

use serde_json::{Map, Value as Json};

use super::feature::Feature;
use super::info::{Info, PLACES, place};
use crate::data::error::DataError;
use crate::files;

pub const MODALITY: &str = "meta/modality.json";

/// The contents of the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Modality {
    /// Groups of states, and those of actions, by their places.
    pub states: Vec<Group>,
    pub actions: Vec<Group>,
    /// Names of cameras with their features.
    pub cameras: Vec<(String, String)>,
}

/// Numbers of a feature that follow one another.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    pub name: String,
    /// The feature that has them, such as `observation.state`.
    pub key: String,
    pub at: Range<usize>,
    /// The form in which they give a rotation, where the file says that they do; they are read as they are.
    pub rotation: Option<String>,
    /// False where the set's actions are differences already.
    pub is_absolute: bool,
}

impl Modality {
    /// Reads the groups of the set in `folder`, which may be a path of the hub; `None`: the set has no such file.
    ///
    /// # Errors
    /// Named by the file: it is wrong, or contradicts the features of the set; or the cache lacks the set.
    pub fn read(folder: &Path, info: &Info) -> Result<Option<Self>, DataError> {
        let path = place(folder)?.join(MODALITY);
        if !path.is_file() {
            return Ok(None);
        }
        let bytes = files::read(&path, files::MAX_TEXT_BYTES).map_err(|error| DataError::read(&path, error))?;
        let json: Json = serde_json::from_slice(&bytes).map_err(|error| DataError::file(&path, error))?;
        Self::of(&json, info).map(Some).map_err(|reason| DataError::file(&path, reason))
    }

    fn of(json: &Json, info: &Info) -> Result<Self, String> {
        let parts = json.as_object().ok_or("is not an object")?;
        known("the file", parts, &["state", "action", "video", "annotation"])?;
        let part = |name: &str| match &json[name] {
            Json::Null => Ok(Map::new()),
            Json::Object(entries) => Ok(entries.clone()),
            other => Err(format!("`{name}` is {:.80}, not an object", other.to_string())),
        };
        let cameras = part("video")?.iter().map(|(name, own)| camera(name, own, info)).collect::<Result<_, _>>()?;
        part("annotation")?.iter().try_for_each(|(name, own)| annotation(name, own, info))?;
        Ok(Self {
            states: groups("state", &part("state")?, "observation.state", info)?,
            actions: groups("action", &part("action")?, "action", info)?,
            cameras,
        })
    }
}

fn known(what: &str, entries: &Map<String, Json>, keys: &[&str]) -> Result<(), String> {
    match entries.keys().find(|key| !keys.contains(&key.as_str())) {
        Some(other) => Err(format!("{what} has the unknown key `{other}`; supported: {}", keys.join(", "))),
        None => Ok(()),
    }
}

/// Returns the groups of a part of the file, by their places. `usual` is the feature of those that name none.
fn groups(part: &str, entries: &Map<String, Json>, usual: &str, info: &Info) -> Result<Vec<Group>, String> {
    let mut groups = Vec::new();
    for (name, own) in entries {
        let what = format!("{part}.{name}");
        let entry = own.as_object().ok_or_else(|| format!("`{what}` is {:.80}, not an object", own.to_string()))?;
        known(&what, entry, &["start", "end", "original_key", "rotation_type", "absolute", "dtype", "range"])?;
        let number = |key: &str| {
            let number = own[key].as_u64().and_then(|number| usize::try_from(number).ok());
            number.ok_or_else(|| format!("`{what}.{key}` is {}, not a whole number", own[key]))
        };
        let (start, end, key) = (number("start")?, number("end")?, own["original_key"].as_str().unwrap_or(usual));
        let feature = info.feature(key).filter(|feature| feature.is_numbers());
        let width = feature
            .map(Feature::width)
            .ok_or_else(|| format!("{what} is part of {key}, but the set has no such numbers"))?;
        if start >= end || end > width {
            return Err(format!("{what} has the numbers {start} to {end} of {key}, but {key} has {width}"));
        }
        groups.push(Group {
            name: name.clone(),
            key: key.to_owned(),
            at: start..end,
            rotation: own["rotation_type"].as_str().map(str::to_owned),
            is_absolute: own["absolute"] != false,
        });
    }
    groups.sort_by(|a, b| (&a.key, a.at.start).cmp(&(&b.key, b.at.start)));
    match groups.windows(2).find(|both| both[0].key == both[1].key && both[0].at.end > both[1].at.start) {
        Some([a, b]) => Err(format!("{part}.{} and {part}.{} overlap in {}", a.name, b.name, a.key)),
        _ => Ok(groups),
    }
}

fn camera(name: &str, own: &Json, info: &Info) -> Result<(String, String), String> {
    let usual = [name.to_owned(), format!("observation.images.{name}")];
    let is_camera = |key: &str| info.cameras().any(|feature| feature.key == key);
    match own["original_key"].as_str() {
        Some(key) if is_camera(key) => Ok((name.to_owned(), key.to_owned())),
        Some(key) => Err(format!("video.{name} is {key}, but the set has no such camera")),
        None => match usual.into_iter().find(|key| is_camera(key)) {
            Some(key) => Ok((name.to_owned(), key)),
            None => Err(format!("video.{name} has no original_key, but the set has no camera of this name")),
        },
    }
}

/// Texts are those of the set's tasks, or of a feature that `policy.text_target` may name.
fn annotation(name: &str, own: &Json, info: &Info) -> Result<(), String> {
    let usual = format!("annotation.{name}");
    let key = own["original_key"].as_str().unwrap_or(&usual);
    match PLACES.contains(&key) || info.feature(key).is_some() {
        true => Ok(()),
        false => Err(format!("annotation.{name} is {key}, but the set has no such feature")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn info() -> Info {
        let vector = |width: usize| json!({ "dtype": "float32", "shape": [width] });
        let json = json!({
            "codebase_version": "v2.1", "fps": 10, "total_episodes": 1, "total_frames": 1, "data_path": "a.parquet",
            "features": {
                "observation.state": vector(7), "action": vector(7), "action.base": vector(2),
                "observation.images.front": { "dtype": "video", "shape": [4, 4, 3] },
                "timestamp": vector(1), "task_index": vector(1),
            },
        });
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("meta")).unwrap();
        std::fs::write(folder.path().join("meta/info.json"), json.to_string()).unwrap();
        Info::read(folder.path()).unwrap()
    }

    fn modality() -> Json {
        json!({
            "state": { "gripper": { "start": 6, "end": 7 }, "single_arm": { "start": 0, "end": 6 } },
            "action": {
                "single_arm": { "start": 0, "end": 6, "rotation_type": "axis_angle" },
                "gripper": { "start": 6, "end": 7, "absolute": false },
                "base": { "start": 0, "end": 2, "original_key": "action.base" },
            },
            "video": { "front": {}, "ego": { "original_key": "observation.images.front" } },
            "annotation": { "human.task_description": { "original_key": "task_index" } },
        })
    }

    #[test]
    fn groups_lie_in_the_order_of_their_places() {
        let read = Modality::of(&modality(), &info()).unwrap();
        let names = |groups: &[Group]| groups.iter().map(|it| (it.name.clone(), it.at.clone())).collect::<Vec<_>>();
        let own = |name: &str, at: Range<usize>| (name.to_owned(), at);
        assert_eq!(names(&read.states), [own("single_arm", 0..6), own("gripper", 6..7)]);
        assert_eq!(names(&read.actions), [own("single_arm", 0..6), own("gripper", 6..7), own("base", 0..2)]);
        assert_eq!(read.actions[0].rotation.as_deref(), Some("axis_angle"));
        assert_eq!(read.actions.iter().map(|it| it.is_absolute).collect::<Vec<_>>(), [true, false, true]);
        let front = |name: &str| (name.to_owned(), "observation.images.front".to_owned());
        assert_eq!(read.cameras, [front("front"), front("ego")]);
    }

    #[test]
    fn contradictions_are_named() {
        for (pointer, value, part) in [
            (
                "/state/single_arm/end",
                json!(8),
                "state.single_arm has the numbers 0 to 8 of observation.state, but observation.state has 7",
            ),
            ("/state/gripper/start", json!(5), "state.single_arm and state.gripper overlap in observation.state"),
            ("/action/gripper/start", json!(7), "action.gripper has the numbers 7 to 7"),
            ("/action/gripper/start", json!("6"), "`action.gripper.start` is \"6\""),
            (
                "/action/base/original_key",
                json!("base"),
                "action.base is part of base, but the set has no such numbers",
            ),
            (
                "/action/gripper",
                json!({ "start": 6, "end": 7, "unit": "m" }),
                "action.gripper has the unknown key `unit`",
            ),
            ("/video/ego/original_key", json!("wrist"), "video.ego is wrist, but the set has no such camera"),
            ("/video/front", json!(null), ""),
            (
                "/annotation/human.task_description",
                json!({}),
                "is annotation.human.task_description, but the set has no",
            ),
            ("/state", json!([]), "`state` is [], not an object"),
        ] {
            let mut json = modality();
            *json.pointer_mut(pointer).unwrap() = value;
            match Modality::of(&json, &info()) {
                Ok(_) => assert!(part.is_empty(), "{pointer}"),
                Err(error) => assert!(!part.is_empty() && error.contains(part), "{error}"),
            }
        }
        let other = json!({ "language": {} });
        assert!(Modality::of(&other, &info()).unwrap_err().contains("the file has the unknown key `language`"));
    }
}
