//! The comparison of two folders that may be of one model, which finds the keys of their `config.json` that differ.

use crate::model::error::FolderError;
use crate::model::folder::ModelFolder;
use loongforge_core::data::policy::{EMBODIMENTS_FILE, NEW_EMBODIMENT};
use serde_json::Value;

/// Differences that one error names.
const MAX_DIFFERENCES: usize = 4;
/// The key of a policy's robot.
const EMBODIMENT: &str = "embodiment_tag";

impl ModelFolder {
    /// Sees to it that a checkpoint is of this model.
    ///
    /// # Errors
    /// It is of another: the keys of `config.json` that differ.
    pub fn expect_same(&self, checkpoint: &Self) -> Result<(), FolderError> {
        let mut differences = Vec::new();
        compare("", &self.as_named(checkpoint), &self.json, &mut differences);
        if differences.is_empty() {
            return Ok(());
        }
        if differences.len() > MAX_DIFFERENCES {
            let more = differences.len() - MAX_DIFFERENCES;
            differences.truncate(MAX_DIFFERENCES);
            differences.push(format!("and {more} more"));
        }
        Err(FolderError::OtherModel { path: checkpoint.path.clone(), differences })
    }

    /// Returns the checkpoint's `config.json` without its robot, where a run wrote that of a config that names none: a checkpoint's
    /// always does, and of several robots it names the first.
    fn as_named(&self, checkpoint: &Self) -> Value {
        let mut theirs = checkpoint.json.clone();
        let has_several = checkpoint.path.join(EMBODIMENTS_FILE).is_file();
        if self.json[EMBODIMENT].is_null() && (theirs[EMBODIMENT] == NEW_EMBODIMENT || has_several) {
            theirs.as_object_mut().map(|keys| keys.shift_remove(EMBODIMENT));
        }
        theirs
    }
}

/// Names the keys whose values differ.
fn compare(key: &str, theirs: &Value, ours: &Value, differences: &mut Vec<String>) {
    match (theirs, ours) {
        (Value::Object(left), Value::Object(right)) => {
            let only_right = right.keys().filter(|name| !left.contains_key(*name));
            // How weights are stored does not make another model.
            let is_storage = |name: &&String| ["dtype", "torch_dtype", "quantization_config"].contains(&name.as_str());
            // Nor does what a policy's data says of its states and actions, or whether a folder has adapters.
            let is_of_data = |name: &&String| {
                let names = [
                    "input_features",
                    "output_features",
                    "normalization_mapping",
                    "use_relative_actions",
                    "relative_exclude_joints",
                    "action_feature_names",
                    "action_decode_transform",
                    "use_peft",
                ];
                key.is_empty() && names.contains(&name.as_str())
            };
            let is_left_out = |name: &&String| is_storage(name) || is_of_data(name);
            for name in left.keys().chain(only_right).filter(|name| !is_left_out(name)) {
                let inner = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                compare(&inner, &theirs[name], &ours[name], differences);
            }
        }
        _ if theirs == ours => {}
        _ => differences.push(format!("{key}: checkpoint {theirs}, this run {ours}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn differences_are_named_by_key() {
        let mut differences = Vec::new();
        let (theirs, ours) = (json!({"a": 1, "text": {"layers": 2, "w": 8}}), json!({"a": 1, "text": {"layers": 3}}));
        compare("", &theirs, &ours, &mut differences);
        assert_eq!(differences, ["text.layers: checkpoint 2, this run 3", "text.w: checkpoint 8, this run null"]);
    }

    /// The checkpoint has adapters, and the folder that its run began with has weights.
    #[test]
    fn adapters_are_of_the_model_that_they_stand_beside() {
        let mut differences = Vec::new();
        compare("", &json!({"type": "pi05", "use_peft": true}), &json!({"type": "pi05"}), &mut differences);
        assert!(differences.is_empty(), "{differences:?}");
    }
}
