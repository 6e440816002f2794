//! Parts of a whole model that are not trained, such as a talker and a vocoder: checkpoints carry them unchanged.

use crate::model::ModelConfig;
use crate::train::WeightsError;
use crate::train::hf::{CarriedTensors, Checkpoint, MAX_SHARD_SIZE};
use loongforge_core::config::{RunConfig, Weights, glob};

/// Finds the tensors of `model.load` that this run's checkpoints carry along: `None` where there are none.
///
/// # Errors
/// A file is torn, or one of them is packed.
pub(super) fn carried_tensors(config: &RunConfig, model: &ModelConfig) -> Result<Option<CarriedTensors>, WeightsError> {
    let prefixes = model.carried.prefixes;
    let folder = match &config.model.load {
        Some(folder) if !prefixes.is_empty() => folder,
        _ => return Ok(None),
    };
    if config.saves_adapters_only() || drops_carried_parts(config, model) {
        return Ok(None);
    }
    CarriedTensors::find(Checkpoint::open(folder.as_path())?, prefixes, &config.model.load_ignore, MAX_SHARD_SIZE)
}

/// Returns whether the checkpoints of this run lack the carried parts of the model, because the run begins with random weights
/// or `model.load_ignore` names all of them. Returns false for a model without such parts.
pub fn drops_carried_parts(config: &RunConfig, model: &ModelConfig) -> bool {
    let (settings, prefixes) = (&config.model, model.carried.prefixes);
    // A pattern that fits the star fits every name that begins so.
    let is_ignored = |prefix: &&str| settings.load_ignore.iter().any(|pattern| glob(pattern, &format!("{prefix}*")));
    !prefixes.is_empty()
        && (settings.weights == Weights::Random || settings.load.is_none() || prefixes.iter().all(is_ignored))
}

/// Returns a sentence on what becomes of the model's carried parts, if it has some.
pub fn note_on_carried_parts(config: &RunConfig, model: &ModelConfig) -> Option<String> {
    let names = model.carried.prefixes.iter().map(|prefix| format!("{prefix}*")).collect::<Vec<_>>().join(", ");
    if names.is_empty() || config.saves_adapters_only() {
        return None;
    }
    Some(match drops_carried_parts(config, model) {
        true => format!("checkpoints have no {names}: their config.json says {}=false", model.carried.flag),
        false => format!(
            "checkpoints carry {names} along unchanged; the talker reads the hidden states of the model that is trained, \
             so speech may get worse"
        ),
    })
}
