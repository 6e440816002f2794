//! The budgets for weights of a run's pools.

use super::pool_specs::kind;
use crate::params::{ParamSpec, within_weight_budget};
use loongforge_core::config::{RunConfig, Size};
use loongforge_core::engine::EngineError;

/// Returns the parameters of a foundation actor, some of which lie on the host.
///
/// # Errors
/// The budget is too small.
pub(super) fn foundation_within_budget(
    config: &RunConfig,
    specs: Vec<ParamSpec>,
) -> Result<Vec<ParamSpec>, EngineError> {
    within(config, "memory.weight_budget.foundation", config.memory.weight_budget.foundation, specs)
}

/// Returns the parameters of an encoder, some of which lie on the host.
///
/// # Errors
/// The budget is too small.
pub(super) fn encoder_within_budget(config: &RunConfig, specs: Vec<ParamSpec>) -> Result<Vec<ParamSpec>, EngineError> {
    within(config, "memory.weight_budget.encoder", config.memory.weight_budget.encoder, specs)
}

fn within(
    config: &RunConfig,
    key: &str,
    budget: Option<Size>,
    specs: Vec<ParamSpec>,
) -> Result<Vec<ParamSpec>, EngineError> {
    let Some(budget) = budget else { return Ok(specs) };
    within_weight_budget(specs, kind(config.train.precision), budget.bytes()).map_err(|least| {
        format!(
            "`{key}`: weights need at least {least} bytes on the device, but the budget is {}: frozen weights of linear layers \
             are already on the host, and all others must stay on the device",
            budget.bytes()
        )
        .into()
    })
}
