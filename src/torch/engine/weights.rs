//! Describes where a run's first weights come from: the folder of the model, those of its parts, or chance.

use crate::model::{ModelConfig, REFERENCE_PREFIX};
use crate::params::{ParamSpec, ParamStore};
use crate::train::WeightsError;
use crate::train::hf::{Checkpoint, LoadOptions, Origin, compare_origin, load_weights_from};
use loongforge_core::config::{RunConfig, Weights};

/// Fills a pool's parameters: those that a folder is for from there, the others with random numbers.
///
/// # Errors
/// A folder lacks a tensor, or has one of another shape.
pub(super) fn initialize(config: &RunConfig, params: &ParamStore) -> Result<(), WeightsError> {
    let origin = origin(config, || params.ids().flat_map(|id| names_of(params.spec(id))))?;
    // What is not loaded is new: adapters, and parts of random weights.
    params.init_where(config.run.seed, |spec| spec.pieces.is_empty() || !origin.covers(&spec.name));
    load_weights_from(params, &origin, &options(config))?;
    Ok(())
}

/// Compares the headers of all folders with the parameters of both pools, as [`initialize`] does before it loads.
///
/// # Errors
/// Every tensor of a pool that is missing or with another shape, in one table; or the file that is torn, or that of a part from which
/// nothing is loaded.
pub fn check_weights(config: &RunConfig, model: &ModelConfig) -> Result<(), WeightsError> {
    expect_parts_used(config, model)?;
    let foundations = model.foundations().map(|foundation| foundation.specs());
    [model.towers.specs()].into_iter().chain(foundations).try_for_each(|specs| expect_weights_of(config, &specs))
}

/// Compares the headers of the folders that these parameters come from with them, as [`check_weights`] does.
///
/// # Errors
/// Fails as [`check_weights`] does.
pub(super) fn expect_weights_of(config: &RunConfig, specs: &[ParamSpec]) -> Result<(), WeightsError> {
    let origin = origin(config, || specs.iter().flat_map(names_of))?;
    compare_origin(specs, &origin, &options(config))
}

/// Refuses the folder of a part beside `model.load` that no parameter is loaded from: in models that are not composed of parts no name
/// begins with one.
fn expect_parts_used(config: &RunConfig, model: &ModelConfig) -> Result<(), WeightsError> {
    let settings = &config.model;
    if settings.load.is_none() || settings.is_foundation_alone() || model.has_network_folders() {
        return Ok(());
    }
    let specs = model.specs();
    let is_used = |key: &str| {
        let prefix = format!("{}.", key.trim_start_matches("model."));
        specs.iter().flat_map(names_of).any(|name| name.starts_with(&prefix))
    };
    match settings.parts().into_iter().find(|(key, part)| part.load.is_some() && !is_used(key)) {
        None => Ok(()),
        Some((key, _)) => {
            let model_type = model.model_type.clone();
            Err(WeightsError::UnusedPart { key: format!("{key}.load"), model_type })
        }
    }
}

/// Returns the keys of the parts that no folder is for although weights are to be loaded: they start with random numbers.
pub fn random_parts(config: &RunConfig, model: &ModelConfig) -> Vec<&'static str> {
    let settings = &config.model;
    if settings.weights == Weights::Random || settings.load.is_some() {
        return Vec::new();
    }
    let names: Vec<String> = model.towers.specs().into_iter().map(|spec| spec.name).collect();
    let of_towers = names.iter().filter_map(|name| model.towers.part_of(name));
    let of_towers: Vec<&str> = of_towers.map(|(tower, part)| settings.tower_part(tower, part).0).collect();
    let has = |key: &str| key == "model.foundation" || of_towers.contains(&key);
    settings.parts().into_iter().filter(|(key, part)| part.load.is_none() && has(key)).map(|(key, _)| key).collect()
}

fn options(config: &RunConfig) -> LoadOptions {
    LoadOptions { resize_embeddings: config.model.resize_embeddings, ..LoadOptions::default() }
}

fn names_of(spec: &ParamSpec) -> impl Iterator<Item = &str> {
    spec.pieces.iter().map(|piece| piece.name.as_str())
}

/// Returns the folders of a pool with these tensors.
fn origin<'a, N: Iterator<Item = &'a str>>(config: &RunConfig, names: impl Fn() -> N) -> Result<Origin, WeightsError> {
    let model = &config.model;
    let mut origin = match (model.weights, &model.load) {
        (Weights::Load, Some(folder)) => {
            // Of a diffusion model only the networks that this pool has.
            let is_own = |network: &str| names().any(|name| name.split('.').next() == Some(network));
            Origin::whole(Checkpoint::open_for(folder.as_path(), is_own)?)
        }
        _ => Origin::default(),
    };
    for (key, part) in model.parts() {
        let Some(folder) = &part.load else { continue };
        let prefix = match model.is_foundation_alone() {
            true => String::new(),
            false => format!("{}.", key.trim_start_matches("model.")),
        };
        if names().any(|name| name.starts_with(&prefix)) {
            origin = origin.with_part(&prefix, Checkpoint::open(folder.as_path())?, names());
        }
    }
    if let Some(folder) = model.reference_source()
        && names().any(|name| name.starts_with(REFERENCE_PREFIX))
    {
        origin = origin.with_part(REFERENCE_PREFIX, Checkpoint::open(folder.as_path())?, names());
    }
    Ok(origin)
}
