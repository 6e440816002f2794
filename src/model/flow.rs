//! The objective of a diffusion model, as the run's config says it.

use loongforge_core::config::{FlowLoss, Latents, LossKind, LossWeight, RunConfig};
use loongforge_torch::model::{self as torch, FlowSettings, ModelConfig, TimeWeight};

/// Returns the model with the run's loss and seed; one that predicts tokens is what it was.
pub(crate) fn with_flow(model: ModelConfig, config: &RunConfig) -> ModelConfig {
    let FlowLoss { kind, delta, weight, gamma, slope, per: _ } = config.train.loss.unwrap_or_default();
    let delta = delta.unwrap_or(1.0);
    let kind = match kind {
        LossKind::Mse => torch::LossKind::Mse,
        LossKind::Huber => torch::LossKind::Huber { delta },
        LossKind::PseudoHuber => torch::LossKind::PseudoHuber { delta },
        LossKind::SmoothL1 => torch::LossKind::SmoothL1 { beta: delta },
    };
    let weight = match weight {
        LossWeight::None => TimeWeight::Even,
        LossWeight::Bell => TimeWeight::Bell,
        LossWeight::SigmaSqrt => TimeWeight::SigmaSqrt,
        LossWeight::Cosmap => TimeWeight::CosMap,
        LossWeight::Linear => TimeWeight::Linear { slope: slope.unwrap_or(1.0) },
        LossWeight::MinSnr => TimeWeight::MinSnr { gamma: gamma.unwrap_or(5.0) },
    };
    let draws_latents = config.train.latents == Latents::Sample;
    let flow = FlowSettings { seed: config.run.seed, kind, weight, masks: config.data.masks, draws_latents };
    model.clone().with_flow(flow).unwrap_or(model)
}
