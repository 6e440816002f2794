//! The optimizer as a run's config has it.

use crate::params::{ParamSpec, Role};
use crate::train::{AdamWConfig, Adjust, MuonConfig, Offload, OptimizerConfig, OptimizerMethod, Tier};
use loongforge_core::config::{AdjustLr, OffloadTo, OptimizerType, RunConfig};
use loongforge_core::engine::EngineError;

/// Returns the optimizer of `train`, with its betas, its decay and where its state lies.
pub(super) fn optimizer(config: &RunConfig) -> OptimizerConfig {
    let own = &config.train.optimizer;
    let method = match own.kind {
        OptimizerType::Adamw => OptimizerMethod::AdamW,
        OptimizerType::Adamw8bit => OptimizerMethod::AdamW8bit,
        OptimizerType::Muon => {
            let muon = own.muon.unwrap_or_default();
            let adjust = match muon.adjust_lr {
                AdjustLr::MatchRmsAdamw => Adjust::MatchRmsAdamw,
                AdjustLr::Original => Adjust::Original,
            };
            OptimizerMethod::Muon(MuonConfig { momentum: muon.momentum, adjust, lr_ratio: muon.lr_ratio })
        }
    };
    let adamw = AdamWConfig { betas: own.betas, eps: own.eps, weight_decay: own.weight_decay };
    let offload = own.offload.as_ref().map(|offload| {
        let folder = offload.path.clone().unwrap_or_default();
        let to = if offload.to == OffloadTo::Cpu { Tier::Host } else { Tier::Disk(folder) };
        Offload { to, fraction: offload.fraction }
    });
    OptimizerConfig { adamw, method, offload }
}

/// Checks that the optimizer can change what one rank of `pool` has.
///
/// # Errors
/// The first parameter that it cannot change.
pub(super) fn check_optimizer(config: &RunConfig, specs: &[ParamSpec], pool: &str) -> Result<(), EngineError> {
    let method = optimizer(config).method;
    let trained = specs.iter().filter(|spec| spec.role == Role::Trained);
    let refused = trained.filter_map(|spec| Some((spec, method.refuses(spec)?))).next();
    refused.map_or(Ok(()), |(spec, why)| {
        let name = &spec.name;
        Err(format!("train.optimizer.type: {name} of pools.{pool}: {why}: use adamw, or replicas with zero").into())
    })
}
