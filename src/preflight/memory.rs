//! Describes whether the weights fit into memory. Gradients, the optimizer's state and activations come on top, so that
//! what is refused here could not run.

use crate::estimate::flops::ParamCounts;
use loongforge_core::config::{Device, FrozenPrecision, Placement, Precision, RunConfig};
use loongforge_core::observe::bytes;
use loongforge_torch::model::ModelConfig;
use loongforge_torch::params::ParamSpec;

/// Parameters of a pool above which sizes are a mistake, whatever the machines: the largest models have 2^41.
const MAX_PARAMETERS: u64 = 1 << 48;

/// Why the weights of a run fit nowhere.
#[derive(Debug, thiserror::Error)]
pub enum MemoryProblem {
    #[error("the model has {parameters} parameters: check the sizes in its config")]
    Absurd { parameters: u64 },
    #[error("{0}: use a smaller model, fewer replicas, or more machines (`check --no-device` does not check this one)")]
    TooMuch(String),
}

/// Compares the weights of all actors with the memory of this machine. A line where they are more and other machines may
/// take part; of GPUs nothing is known.
///
/// # Errors
/// They are more and the run is `alone` on this machine; or no machine could hold them.
pub fn check(config: &RunConfig, model: &ModelConfig, alone: bool) -> Result<Option<String>, MemoryProblem> {
    let encoder: Vec<ParamSpec> = model.towers.specs().into_iter().collect();
    let foundations = config.foundations().into_iter().map(|(name, _)| model.foundation_of(name).specs());
    let counts = [encoder].into_iter().chain(foundations).map(|specs| ParamCounts::of(specs.iter()));
    let parameters: Vec<u64> = counts.map(|pool| pool.trained.saturating_add(pool.frozen)).collect();
    if let Some(&parameters) = parameters.iter().find(|count| **count > MAX_PARAMETERS) {
        return Err(MemoryProblem::Absurd { parameters });
    }
    let needed = least(config, &pool_bits(config, model));
    let Some(there) = machine().filter(|there| config.device == Device::Cpu && needed > *there) else {
        return Ok(None);
    };
    let text = format!(
        "the weights of all actors take at least {}, but this machine has {} of memory",
        bytes(needed),
        bytes(there)
    );
    if alone { Err(MemoryProblem::TooMuch(text)) } else { Ok(Some(format!("warning: {text}"))) }
}

/// Bits of the weights of the towers, and of each foundation pool: of linear maps that may be rounded, those that are left.
fn pool_bits(config: &RunConfig, model: &ModelConfig) -> Vec<u64> {
    let width = if config.train.precision == Precision::Bf16 { 16 } else { 32 };
    let sum = |specs: Vec<ParamSpec>, part_of: &dyn Fn(&str) -> Option<FrozenPrecision>| {
        let bits = |spec: &ParamSpec| {
            let is_map = spec.is_linear || spec.is_modulation;
            let bits = part_of(&spec.name).filter(|_| is_map).map_or(width, FrozenPrecision::bits);
            spec.shape.iter().fold(bits, |bits, size| bits.saturating_mul(*size as u64))
        };
        specs.iter().map(bits).fold(0, u64::saturating_add)
    };
    let of_tower = |name: &str| {
        let (tower, is_projector) = model.towers.part_of(name)?;
        config.model.tower_part(tower, is_projector).1.frozen_precision
    };
    let foundations = config.foundations().into_iter().map(|(name, _)| model.foundation_of(name).specs());
    let foundations = foundations.map(|specs| sum(specs, &|_| config.model.foundation.frozen_precision));
    [sum(model.towers.specs(), &of_tower)].into_iter().chain(foundations).collect()
}

/// Bytes of the weights alone, one copy in each replica: less than any run holds. `weights`: [`pool_bits`].
fn least(config: &RunConfig, weights: &[u64]) -> u64 {
    let pools = &config.pools;
    let copies = |replicas: usize, zero: usize| if zero == 3 { 1 } else { replicas as u64 };
    let encoders = match pools.placement {
        Placement::Separate => {
            let named = pools.named.values().map(|pool| copies(pool.replicas, pool.zero));
            named.chain([copies(pools.encoder.replicas, pools.encoder.zero)]).min().unwrap_or(0)
        }
        Placement::Colocated => pools.foundation.layout().ranks() as u64,
    };
    let foundations = config.foundations().into_iter().map(|(_, pool)| copies(pool.replicas, pool.zero));
    let all = weights.iter().zip([encoders].into_iter().chain(foundations));
    all.map(|(bits, copies)| (bits / 8).saturating_mul(copies)).fold(0, u64::saturating_add)
}

/// Bytes of memory of this machine, swap included.
pub fn machine() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.trim().parse().ok()
    };
    kib("MemTotal:")?.saturating_add(kib("SwapTotal:").unwrap_or(0)).checked_mul(1024)
}
