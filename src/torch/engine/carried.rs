//! Parts of a whole model that are not trained, such as a talker and a vocoder: checkpoints carry them unchanged.

use crate::model::ModelConfig;
use crate::train::WeightsError;
use crate::train::hf::{CarriedTensors, Checkpoint, FilesOf, MAX_SHARD_SIZE};
use loongforge_core::config::{RunConfig, Weights, glob};
use loongforge_core::data::COMPONENTS;
use std::collections::BTreeSet;

/// Finds the tensors of `model.load` that this run's checkpoints carry along, and which files they go into.
///
/// # Errors
/// A file is torn, or one of them is packed.
pub(super) fn carried_tensors(
    config: &RunConfig,
    model: &ModelConfig,
) -> Result<Vec<(FilesOf, CarriedTensors)>, WeightsError> {
    if config.saves_adapters_only() {
        return Ok(Vec::new());
    }
    if model.has_network_folders() {
        return parts_of_networks(config, model);
    }
    let prefixes = model.carried.prefixes;
    let folder = match &config.model.load {
        Some(folder) if !prefixes.is_empty() && !drops_carried_parts(config, model) => folder,
        _ => return Ok(Vec::new()),
    };
    let checkpoint = Checkpoint::open(folder.as_path())?;
    let found = CarriedTensors::find(checkpoint, prefixes, &config.model.load_ignore, MAX_SHARD_SIZE)?;
    Ok(found.map(|tensors| (FilesOf::Whole, tensors)).into_iter().collect())
}

/// Returns the tensors of a diffusion model's networks that none of the run's pools has: the half of an autoencoder that is not used, or
/// a transformer that is not trained.
fn parts_of_networks(config: &RunConfig, model: &ModelConfig) -> Result<Vec<(FilesOf, CarriedTensors)>, WeightsError> {
    let settings = &config.model;
    if settings.weights == Weights::Random {
        return Ok(Vec::new());
    }
    let specs = model.specs();
    let mut found = Vec::new();
    for network in COMPONENTS {
        let part = settings.parts().into_iter().find(|(key, _)| key.strip_prefix("model.") == Some(network.name));
        let part = part.and_then(|(_, part)| part.load.as_ref());
        let Some(folder) = part.or(settings.load.as_ref()) else { continue };
        let checkpoint = Checkpoint::open_for(folder.as_path(), |name| name == network.name)?;
        let own: BTreeSet<String> =
            specs.iter().flat_map(|spec| checkpoint.pieces(spec)).map(|piece| piece.name).collect();
        let of = FilesOf::Network(network);
        let is_carried = |name: &str| of.has(name) && !own.contains(name);
        let tensors = CarriedTensors::find_where(checkpoint, is_carried, &settings.load_ignore, MAX_SHARD_SIZE)?;
        found.extend(tensors.map(|tensors| (of, tensors)));
    }
    Ok(found)
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
    Some(match (drops_carried_parts(config, model), model.carried.flag) {
        (true, Some(flag)) => format!("checkpoints have no {names}: their config.json says {flag}=false"),
        (true, None) => format!("checkpoints have no {names}, which nothing reads"),
        (false, None) => return None,
        (false, Some(_)) => format!(
            "{names} are saved unchanged; the talker reads the hidden states of the model that is trained, so speech may get worse"
        ),
    })
}
