//! The names of the features of a policy's data: the settings of a run give them, or the policy's folder has kept them in lerobot's
//! preprocessor (`rename_map`).

use std::path::Path;

use serde_json::Value as Json;

use super::files;
use super::spec::{ACTION, STATE};
use crate::config::Policy;
use crate::data::error::DataError;
use crate::data::lerobot::Info;
use crate::data::processor::PolicyOptions;

/// Names of the features that a policy was trained on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataNames {
    /// Cameras of the data, each with the policy's name, where that is another.
    pub cameras: Vec<(String, String)>,
    pub state: String,
    pub action: String,
}

impl DataNames {
    /// Returns the names that these settings have.
    pub(super) fn of(settings: &Policy) -> Self {
        let Policy { cameras, state, action, .. } = settings;
        let cameras = cameras.iter().map(|(key, name)| (key.clone(), name.clone())).collect();
        Self { cameras, state: state.clone(), action: action.clone() }
    }
}

impl Default for DataNames {
    /// Those that lerobot gives them.
    fn default() -> Self {
        Self { cameras: Vec::new(), state: STATE.to_owned(), action: ACTION.to_owned() }
    }
}

/// Returns the settings with the names that the policy's folder has kept, where they say nothing. A feature of a set that has the policy's
/// own name goes before one that the folder gives it.
///
/// # Errors
/// Named by the file: the preprocessor or a set is wrong or missing, or the sets have two features that get one name.
pub fn settled(folder: &Path, config: &Json, options: &PolicyOptions) -> Result<PolicyOptions, DataError> {
    let mut settled = options.clone();
    let kept = files::read(folder)?.map(|saved| saved.renamed).unwrap_or_default();
    if kept.is_empty() {
        return Ok(settled);
    }
    let paths = options.sets.iter().flat_map(|file| &file.path.0);
    let sets = paths.map(|path| Info::read(Path::new(path))).collect::<Result<Vec<Info>, _>>()?;
    let all_have =
        |key: &str, name: &str| sets.iter().all(|set| set.feature(key).is_some() && set.feature(name).is_none());
    for (what, own, name) in [("state", &options.settings.state, STATE), ("action", &options.settings.action, ACTION)] {
        let mut given = kept.iter().filter(|(key, to)| to == name && all_have(key, name));
        if own == name
            && !sets.is_empty()
            && let (Some((first, _)), Some((second, _))) = (given.next(), given.next())
        {
            let reason = format!(
                "renames both {first} and {second} to {name}, and the data has both: name one in policy.{what}"
            );
            return Err(DataError::file(&folder.join("policy_preprocessor.json"), reason));
        }
    }
    let settings = &mut settled.settings;
    for (key, name) in &kept {
        match name.as_str() {
            STATE if settings.state == STATE && all_have(key, name) => settings.state.clone_from(key),
            ACTION if settings.action == ACTION && all_have(key, name) => settings.action.clone_from(key),
            name if config["input_features"][name]["type"] == "VISUAL" && is_free(settings, &sets, key, name) => {
                settings.cameras.insert(key.clone(), name.to_owned());
            }
            // Nothing of it is read.
            _ => {}
        }
    }
    Ok(settled)
}

/// Returns whether the camera `key` of the data may be the policy's camera `name`: the settings do not list it, and of the sets that have
/// it none has another camera of this name.
fn is_free(settings: &Policy, sets: &[Info], key: &str, name: &str) -> bool {
    let is_taken = |set: &&Info| {
        let mut given = settings.cameras.iter().filter(|(_, other)| other.as_str() == name);
        has_camera(set, name) || given.any(|(other, _)| has_camera(set, other))
    };
    let with: Vec<&Info> = sets.iter().filter(|set| has_camera(set, key)).collect();
    let is_read = sets.is_empty() || !with.is_empty();
    is_read && !settings.cameras.contains_key(key) && !with.iter().any(is_taken)
}

fn has_camera(set: &Info, key: &str) -> bool {
    set.cameras().any(|camera| camera.key == key)
}
