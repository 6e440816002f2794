//! The training of a robot policy, as the run's config says it.

use crate::model::flow::with_flow;
use loongforge_core::config::RunConfig;
use loongforge_torch::model::{ModelConfig, PolicyOptions};

/// Returns the model as the run trains it: with its noise levels, and with its section `policy`.
pub(crate) fn as_configured(model: ModelConfig, config: &RunConfig) -> ModelConfig {
    with_policy(with_flow(model, config), config)
}

/// Returns the model with the section `policy` of the run; one that is no policy is what it was.
fn with_policy(model: ModelConfig, config: &RunConfig) -> ModelConfig {
    let settings = &config.policy;
    let options = PolicyOptions {
        noise_draws: settings.noise_draws as u32,
        insulate: settings.insulate,
        flow_weight: settings.flow_weight,
        token_weight: settings.token_weight,
        max_delay: settings.max_delay as u32,
    };
    model.clone().with_policy(options).unwrap_or(model)
}
