//! Describes whether the weights fit into memory. Gradients, the optimizer's state and activations come on top, so that
//! what is refused here could not run.

use crate::estimate::flops::ParamCounts;
use crate::estimate::memory::system_bytes;
use loongforge_core::config::{Device, FrozenPrecision, Placement, Precision, RunConfig};
use loongforge_core::observe::bytes;
use loongforge_torch::model::ModelConfig;
use loongforge_torch::params::ParamSpec;
use std::path::Path;

/// Parameters of a pool above which sizes are a mistake, whatever the machines: the largest models have 2^41.
const MAX_PARAMETERS: u64 = 1 << 48;

/// The reasons why the weights of a run fit nowhere.
#[derive(Debug, thiserror::Error)]
pub enum MemoryProblem {
    #[error("the model has {parameters} parameters: check the sizes in its config")]
    Absurd { parameters: u64 },
    #[error("{0}: use a smaller model, fewer replicas, or more machines (`check --no-device` does not check this one)")]
    TooMuch(String),
}

/// Compares the weights of all actors with the memory of this machine; those of the foundation's have what is `untrained` besides. A line
/// where they are more and other machines may take part; of GPUs nothing is known.
///
/// # Errors
/// They are more and the run is `alone` on this machine; or no machine could hold them.
pub fn check(
    config: &RunConfig,
    model: &ModelConfig,
    untrained: &[ParamSpec],
    alone: bool,
) -> Result<Option<String>, MemoryProblem> {
    let encoder: Vec<ParamSpec> = model.towers.specs().into_iter().collect();
    let foundations = config.foundations().into_iter().map(|(name, _)| model.foundation_of(name).specs());
    let counts = [encoder].into_iter().chain(foundations).map(|specs| ParamCounts::of(specs.iter()));
    let parameters: Vec<u64> = counts.map(|pool| pool.trained.saturating_add(pool.frozen)).collect();
    if let Some(&parameters) = parameters.iter().find(|count| **count > MAX_PARAMETERS) {
        return Err(MemoryProblem::Absurd { parameters });
    }
    let needed = least(config, &pool_bits(config, model, untrained));
    let Some(there) = machine().filter(|there| config.device == Device::Cpu && needed > *there) else {
        return Ok(None);
    };
    let text = format!(
        "the weights of all actors take at least {}, but this machine or its container has {} of memory",
        bytes(needed),
        bytes(there)
    );
    if alone { Err(MemoryProblem::TooMuch(text)) } else { Ok(Some(format!("warning: {text}"))) }
}

/// Returns the bits of the weights of the towers, and of each foundation pool: of linear maps that may be rounded, those that are left.
fn pool_bits(config: &RunConfig, model: &ModelConfig, untrained: &[ParamSpec]) -> Vec<u64> {
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
        let (tower, part) = model.towers.part_of(name)?;
        config.model.tower_part(tower, part).1.frozen_precision
    };
    let foundations = config.foundations().into_iter().map(|(name, _)| model.foundation_of(name).specs());
    let foundations = foundations.map(|specs| {
        let specs = specs.into_iter().chain(untrained.iter().cloned()).collect();
        sum(specs, &|_| config.model.foundation.frozen_precision)
    });
    [sum(model.towers.specs(), &of_tower)].into_iter().chain(foundations).collect()
}

/// Returns the number of bytes of the weights alone, one copy in each replica: less than any run holds. `weights`: [`pool_bits`].
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

/// Returns the number of bytes of memory that this process may use, swap included: those of this machine, or fewer in a container.
pub fn machine() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let swap = system_bytes(&text, "SwapTotal").unwrap_or(0);
    let whole = system_bytes(&text, "MemTotal")?.checked_add(swap)?;
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(limit_of_groups(Path::new("/sys/fs/cgroup"), &groups, swap).map_or(whole, |limit| limit.min(whole)))
}

/// Returns the number of bytes that the control groups (of version 2) of this process allow, swap included; `None`: there is no limit.
/// `groups` is its `/proc/self/cgroup`. A group is limited by those above it, too.
fn limit_of_groups(root: &Path, groups: &str, swap: u64) -> Option<u64> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let limit = |folder: &Path| -> Option<u64> {
        // Where there is no limit, there is no file, or `max` in it.
        let number = |name: &str| std::fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
        Some(number("memory.max")?.saturating_add(number("memory.swap.max").map_or(swap, |limit| limit.min(swap))))
    };
    root.join(group).ancestors().take_while(|folder| folder.starts_with(root)).filter_map(limit).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::config::load_text;
    use std::fs;

    #[test]
    fn what_is_untrained_counts_beside_the_foundation() {
        let text = include_str!("../../configs/sft_text.yaml");
        let mut config = load_text(text).unwrap_or_else(|report| panic!("{report}")).config;
        config.pools.foundation.replicas = 2;
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/torch/tests/fixtures/llama3-seed1/config.json");
        let json = serde_json::from_slice(&fs::read(fixture).unwrap()).unwrap();
        let model = ModelConfig::from_hf(&json).unwrap();
        let untrained = model.foundation.specs();
        let [alone, both] = [&[][..], &untrained[..]].map(|specs| least(&config, &pool_bits(&config, &model, specs)));
        assert!(alone > 0 && both == 2 * alone, "{alone} and {both}");
    }

    #[test]
    fn the_tightest_of_the_groups_that_a_process_is_in_limits_its_memory() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("slurm/job");
        fs::create_dir_all(&inner).unwrap();
        let limit = |groups: &str| limit_of_groups(root.path(), groups, 100);
        assert_eq!(limit("0::/slurm/job\n"), None);
        fs::write(inner.join("memory.max"), "max\n").unwrap();
        fs::write(root.path().join("slurm/memory.max"), "8000\n").unwrap();
        fs::write(root.path().join("slurm/memory.swap.max"), "0\n").unwrap();
        assert_eq!(limit("0::/slurm/job\n"), Some(8000));
        assert_eq!((limit("0::/\n"), limit("0::/other\n"), limit("3:memory:/slurm\n")), (None, None, None));
        // As a container sees its own group.
        fs::write(root.path().join("memory.max"), "5000\n").unwrap();
        assert_eq!((limit("1:cpu:/\n0::/\n"), limit("0::/slurm/job\n")), (Some(5100), Some(5100)));
        assert!(machine().is_some_and(|bytes| bytes > 0));
    }
}
