//! What a run of a robot policy takes from its config and its data: how the model is trained, and what its checkpoints hold
//! besides weights.

use crate::model::folder::ModelFolder;
use loongforge_core::config::{ModelKind, RunConfig};
use loongforge_core::data::{DataError, InProcess, ProcessorOptions};
use loongforge_torch::model::{ModelConfig, PolicyOptions};
use serde_json::Value;
use std::sync::Arc;

/// The model with the section `policy` of the run; one that is no policy is what it was.
pub(crate) fn with_policy(model: ModelConfig, config: &RunConfig) -> ModelConfig {
    let settings = &config.policy;
    let options = PolicyOptions { noise_draws: settings.noise_draws as u32, insulate: settings.insulate };
    model.clone().with_policy(options).unwrap_or(model)
}

/// The files of a policy's processors, with the statistics of the run's data, and its `config.json` with the sizes and
/// normalizations of these; `None`: the model is no policy.
///
/// # Errors
/// The data or the model's folder cannot be read, or they do not fit each other.
pub(crate) fn processors(
    config: &RunConfig,
    folder: &ModelFolder,
) -> Result<Option<(Vec<(String, Vec<u8>)>, Value)>, DataError> {
    if folder.model_kind() != ModelKind::Policy {
        return Ok(None);
    }
    let maker = folder.maker(&ProcessorOptions::of_run(config, &config.data), Arc::new(InProcess))?;
    let Some(policy) = maker.as_policy() else { return Ok(None) };
    let mut json = folder.json.clone();
    policy.put_features(&mut json);
    Ok(Some((policy.files(), json)))
}
