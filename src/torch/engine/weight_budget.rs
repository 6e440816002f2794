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

/// Returns the parameters of a foundation actor, and those of the `untrained` transformer that it has besides, some of which lie on the
/// host: the budget is for all of them.
///
/// # Errors
/// The budget is too small.
pub(super) fn both_within_budget(
    config: &RunConfig,
    specs: Vec<ParamSpec>,
    untrained: Vec<ParamSpec>,
) -> Result<[Vec<ParamSpec>; 2], EngineError> {
    let num_own = specs.len();
    let mut own = foundation_within_budget(config, specs.into_iter().chain(untrained).collect())?;
    let untrained = own.split_off(num_own);
    Ok([own, untrained])
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Init;
    use loongforge_core::config::load_text;

    #[test]
    fn a_budget_is_for_both_transformers() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("d.jsonl");
        std::fs::write(&data, "{}\n").unwrap();
        let text = format!(
            "run: {{ name: t }}\nmodel: {{ config: {{ model_type: x }}, weights: random, tokenizer: org/name }}\n\
             data: {{ train: [{{ path: {} }}] }}\ntrain: {{ steps: 2, global_batch_size: 1, lr: 1.0 }}\n",
            data.display()
        );
        let mut config = load_text(&text).unwrap_or_else(|report| panic!("{report}")).config;
        let of = |network: &str| -> Vec<ParamSpec> {
            let layer = |index: usize| {
                let spec = ParamSpec::new(format!("{network}.blocks.{index}.w"), &[32, 32], Init::Zeros).frozen();
                ParamSpec { is_linear: true, ..spec }
            };
            (0..4).map(layer).collect()
        };
        let mut num_away = |layers: u64| {
            config.memory.weight_budget.foundation = Some(format!("{}B", layers * 4096).parse().unwrap());
            let both = both_within_budget(&config, of("transformer"), of("transformer_2")).ok()?;
            Some(both.map(|specs| (specs.len(), specs.iter().filter(|spec| spec.held.on_host).count())))
        };
        assert_eq!(num_away(8), Some([(4, 0), (4, 0)]));
        // One layer is read, and another one on its way.
        assert_eq!(num_away(2), Some([(4, 4), (4, 4)]));
        assert_eq!(num_away(1), None);
        assert_eq!(num_away(6), Some([(4, 2), (4, 2)]));
    }
}
