//! Compares a model of an unknown `model_type` with the families that are known, by its `config.json` and its tensors.

use std::path::Path;

use loongforge_torch::model::{Alike, ModelConfig, ModelConfigError};
use loongforge_torch::train::hf::{Checkpoint, LoadOptions, compare_weights};
use serde_json::Value;

/// Names of this many models are told.
const MOST: usize = 3;

/// Returns a hint for the folder at `path`, whose `config.json` is `json` and was refused with `error`; `None` where that is not for the
/// `model_type`, or no language model that we know has its tensors.
pub(super) fn hint(path: &Path, json: &Value, error: &ModelConfigError) -> Option<String> {
    if !matches!(error, ModelConfigError::Unsupported { key, .. } if key == "model_type") {
        return None;
    }
    let checkpoint = Checkpoint::open(path).ok()?;
    let fits =
        |alike: &Alike| compare_weights(&alike.config.foundation.specs(), &checkpoint, &LoadOptions::default()).is_ok();
    let found: Vec<Alike> = ModelConfig::alike(json).into_iter().filter(fits).take(MOST).collect();
    let first = found.first()?;
    let unread = first.unread.join(", ");
    // Those that read as many keys of the config.
    let alike = found.iter().take_while(|alike| alike.unread.len() == first.unread.len());
    let names: Vec<&str> = alike.map(|alike| alike.model_type).collect();
    let (names, name) = (names.join(" or "), first.model_type);
    let then = format!("set model.overrides.model_type={name}");
    Some(match unread.is_empty() {
        true => format!("it looks like {names}: keys and tensors are those; if it computes the same, {then}"),
        false => format!(
            "it has the tensors of {names}, but keys that {name} does not read ({unread}); only if they change nothing, {then}"
        ),
    })
}
