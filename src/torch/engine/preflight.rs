//! Describes whether the engines of a run can be built: asked of its config and its model by the functions that build
//! them, before there are actors, groups, memory or weights.

use super::exports::exports;
use super::optimizer::check_optimizer;
use super::pool_specs::{encoder_specs, splits, tower_part};
use super::share::{FoundationPlan, divided_towers};
use super::trained::{check_patterns, trained};
use super::weight_budget::{encoder_within_budget, foundation_within_budget};
use crate::model::ModelConfig;
use crate::params::{ParallelRank, ParamSpec};
use loongforge_core::config::{Device, EncoderPool, FoundationPool, OffloadTo, Placement, RunConfig};
use loongforge_core::engine::EngineError;
use loongforge_core::message::{ActorId, PoolName, TowerSet};

mod policy;

/// Checks layout, stages, adapters and checkpoints of every actor.
///
/// # Errors
/// The first thing for which an actor could not build its engine, or could not run a pack.
pub fn check_engines(config: &RunConfig, model: &ModelConfig) -> Result<(), EngineError> {
    let mut foundations = Vec::new();
    for (name, pool) in config.foundations() {
        foundations.extend(check_foundation(config, model, name, &pool)?);
    }
    let mut towers = Vec::new();
    for (name, pool, set) in config.pools.encoders(model.towers.set()) {
        towers.extend(check_encoder(config, model, name, pool, set)?);
    }
    policy::check(config, model, &foundations, &towers)?;
    check_held_towers(config, model)
}

/// Checks the actors of one foundation pool, and returns the parameters of the whole foundation, of which a rank has a part.
fn check_foundation(
    config: &RunConfig,
    model: &ModelConfig,
    name: PoolName,
    pool: &FoundationPool,
) -> Result<Vec<ParamSpec>, EngineError> {
    let family = model.foundation_of(name);
    let part_of = |_: &str| ("model.foundation", &config.model.foundation);
    let (layout, splits) = (pool.layout(), splits(pool));
    let parallel = ParallelRank::first(layout, splits.sequence_parallel);
    let plan = FoundationPlan::new(family, layout, &parallel, &splits, name)?;
    let mut of_rank = Vec::new();
    for stage in 0..layout.pp {
        let specs = trained(plan.specs(stage), &model.tree, part_of)?;
        check_optimizer(config, &specs, name.as_str())?;
        of_rank = foundation_within_budget(config, specs)?;
    }
    let is_whole = layout.pp == 1 && parallel.is_whole();
    let whole = if is_whole { of_rank } else { trained(family.specs(), &model.tree, part_of)? };
    check_patterns(&whole, part_of)?;
    exports(config, model, ActorId::foundation_of(name, 0))?;
    Ok(whole)
}

/// Checks the actors of one encoder pool, which holds the towers of `set`, and returns the parameters of these towers, of which a
/// rank has a part.
fn check_encoder(
    config: &RunConfig,
    model: &ModelConfig,
    name: PoolName,
    pool: &EncoderPool,
    set: TowerSet,
) -> Result<Vec<ParamSpec>, EngineError> {
    if pool.reads() && !config.model.has_frozen(set) {
        let why = "features of towers that are trained change with every step";
        return Err(format!("pools.{name}.replicas is 0, and the pool is trained: {why}").into());
    }
    // On the foundation's actors every encoder is whole.
    let parallel = match config.pools.placement {
        Placement::Colocated => ParallelRank::default(),
        Placement::Separate => ParallelRank::first(pool.layout(), false),
    };
    let towers = model.towers.only(set);
    let divided = divided_towers(&towers, &parallel).map_err(|found| format!("pools.{name}: {found}"))?;
    let specs = encoder_specs(config, &divided, &model.tree)?;
    check_optimizer(config, &specs, name.as_str())?;
    let of_rank = encoder_within_budget(config, specs)?;
    let whole = if parallel.is_whole() { of_rank } else { encoder_specs(config, &towers, &model.tree)? };
    check_patterns(&whole, |name| tower_part(config, &towers, name))?;
    Ok(whole)
}

/// Refuses pools for towers that the model does not have.
fn check_held_towers(config: &RunConfig, model: &ModelConfig) -> Result<(), EngineError> {
    let towers = model.towers.set();
    for (name, pool) in &config.pools.named {
        if let Some(tower) = pool.held(*name).iter().find(|tower| !towers.contains(*tower)) {
            return Err(format!("pools.{name}: it holds the {tower} tower, which this model does not have").into());
        }
    }
    Ok(())
}

/// Returns what a config asks for that has no effect on this model: a sentence each.
pub fn without_effect(config: &RunConfig, model: &ModelConfig) -> Vec<String> {
    let dense = config
        .foundations()
        .into_iter()
        .filter(|(name, pool)| pool.expert_parallel > 1 && !model.foundation_of(*name).has_experts());
    let no_experts = dense.map(|(name, pool)| {
        let experts = pool.expert_parallel;
        format!("pools.{name}.expert_parallel is {experts} and has no effect: this model has no experts to spread")
    });
    let pools = config.pools.encoders(model.towers.set());
    let is_frozen = |towers| config.model.has_frozen(towers);
    let rates = pools.into_iter().filter(|(_, pool, towers)| pool.lr.is_some() && is_frozen(*towers));
    let rates = rates.map(|(name, ..)| format!("pools.{name}.lr has no effect: the pool's towers are frozen"));
    let on_host = config.train.optimizer.offload.as_ref().filter(|offload| offload.to == OffloadTo::Cpu);
    let same_memory = on_host.filter(|_| config.device == Device::Cpu).map(|_| {
        "train.optimizer.offload.to is cpu and saves nothing on device: cpu, whose memory is the host's (to: disk does)".to_owned()
    });
    no_experts.chain(rates).chain(same_memory).collect()
}
