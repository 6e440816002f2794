//! The parameters of a run's pools, with what is trained of them, and how ranks share them.

use super::share::Splits;
use super::trained::trained;
use crate::model::{Towers, TreeNames};
use crate::params::ParamSpec;
use crate::train::hf::{MAX_SHARD_SIZE, num_shards};
use loongforge_core::config::{FoundationPool, Part, Precision, RunConfig};
use loongforge_core::engine::EngineError;
use loongforge_core::message::{Tower, TowerPart};
use tch::Kind;

/// Returns the encoder pool's parameters: a tower is one part of the config, its projector another.
pub(super) fn encoder_specs(
    config: &RunConfig,
    towers: &Towers,
    tree: &TreeNames,
) -> Result<Vec<ParamSpec>, EngineError> {
    Ok(trained(towers.specs(), tree, |name| tower_part(config, towers, name))?)
}

/// Returns the part, with its key in the config, that a parameter of these towers belongs to.
pub(super) fn tower_part<'a>(config: &'a RunConfig, towers: &Towers, name: &str) -> (&'static str, &'a Part) {
    let (tower, part) = towers.part_of(name).unwrap_or((Tower::Vision, TowerPart::Encoder));
    config.model.tower_part(tower, part)
}

/// Returns the number of files that a pool with these parameters writes.
pub(super) fn num_files<'a>(specs: impl Iterator<Item = &'a ParamSpec> + Clone, precision: Precision) -> usize {
    num_shards(specs, kind(precision), MAX_SHARD_SIZE)
}

/// Returns the type of parameters.
pub(super) fn kind(precision: Precision) -> Kind {
    match precision {
        Precision::Float32 => Kind::Float,
        Precision::Bf16 => Kind::BFloat16,
    }
}

/// Returns how ranks of a pool share rows, layers, experts and parameters.
pub(super) fn splits(pool: &FoundationPool) -> Splits {
    Splits {
        sequence_parallel: pool.sequence_parallel,
        virtual_stages: pool.virtual_stages,
        chunk_tokens: pool.chunk_tokens,
        context: pool.context_attention,
        zero: pool.zero,
        expert_overlap: pool.expert_overlap,
    }
}
