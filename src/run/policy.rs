//! The training of a robot policy, as the run's config says it.

use loongforge_core::config::RunConfig;
use loongforge_torch::model::{ModelConfig, PolicyOptions};

/// The model with the section `policy` of the run; one that is no policy is what it was.
pub(crate) fn with_policy(model: ModelConfig, config: &RunConfig) -> ModelConfig {
    let settings = &config.policy;
    let options = PolicyOptions {
        noise_draws: settings.noise_draws as u32,
        insulate: settings.insulate,
        max_delay: settings.max_delay as u32,
    };
    model.clone().with_policy(options).unwrap_or(model)
}
