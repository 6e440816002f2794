//! Describes whether the engines of a run can be built: asked of its config and its model by the functions that build
//! them, before there are actors, groups, memory or weights.

use super::actor_spec::is_trained;
use super::build_cached::{expect_whole, trained_parts};
use super::exports::exports;
use super::optimizer::check_optimizer;
use super::pool_specs::{encoder_specs, splits, tower_part};
use super::share::{FoundationPlan, divided_towers};
use super::trained::{check_patterns, trained, trained_foundation, trained_stage};
use super::weight_budget::{encoder_within_budget, foundation_within_budget};
use crate::model::ModelConfig;
use crate::params::{ParallelRank, ParamSpec, Role};
use loongforge_core::config::{
    ContextAttention, Device, EncoderPool, FoundationPool, OffloadTo, Part, Placement, Products, RunConfig,
};
use loongforge_core::engine::EngineError;
use loongforge_core::message::{ActorId, PoolName, Tower, TowerPart, TowerSet};

mod policy;

pub use policy::untrained_maps;

/// Checks layout, stages, adapters and checkpoints of every actor.
///
/// # Errors
/// An actor could not build its engine, or could not run a pack; the error is the first such thing.
pub fn check_engines(config: &RunConfig, model: &ModelConfig) -> Result<(), EngineError> {
    let mut foundations = Vec::new();
    for (name, pool) in config.foundations() {
        foundations.extend(check_foundation(config, model, name, &pool)?);
    }
    // Of two transformers a pattern may mean one.
    let part_of = |_: &str| ("model.foundation", &config.model.foundation);
    if model.low_noise.is_some() {
        trained(model.foundations().flat_map(|family| family.specs()).collect(), &model.tree, part_of)?;
    }
    check_patterns(&foundations, [part_of("")], part_of)?;
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
    let is_whole = layout.pp == 1 && parallel.is_whole();
    let mut of_rank = Vec::new();
    for stage in 0..layout.pp {
        let of_stage = plan.specs(stage);
        let specs = match is_whole {
            true => trained_foundation(of_stage, model, part_of)?,
            false => trained_stage(of_stage, &model.tree, part_of)?,
        };
        check_optimizer(config, &specs, name.as_str())?;
        of_rank = foundation_within_budget(config, specs)?;
    }
    let whole = if is_whole { of_rank } else { trained_foundation(family.specs(), model, part_of)? };
    let has_adapters = config.model.foundation.lora.is_some();
    if model.low_noise.is_some() && has_adapters && !whole.iter().any(|spec| spec.role == Role::Trained) {
        let help = "to train the other transformer alone, set model.experts to high or low";
        return Err(format!("model.foundation.lora names nothing of the transformer of pools.{name}: {help}").into());
    }
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
        return Err(format!("pools.{name}.replicas is 0, but the pool is trained: {why}").into());
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
    if pool.cache_dir.is_some() {
        expect_whole(name, pool, &trained_parts(config, &towers, &specs))?;
    }
    let of_rank = encoder_within_budget(config, specs)?;
    let whole = if parallel.is_whole() { of_rank } else { encoder_specs(config, &towers, &model.tree)? };
    let parts = set.iter().flat_map(|tower| TowerPart::ALL.map(|part| config.model.tower_part(tower, part)));
    check_patterns(&whole, parts, |name| tower_part(config, &towers, name))?;
    Ok(whole)
}

/// Refuses pools for towers that the model does not have.
fn check_held_towers(config: &RunConfig, model: &ModelConfig) -> Result<(), EngineError> {
    let towers = model.towers.set();
    for (name, pool) in &config.pools.named {
        if let Some(tower) = pool.held(*name).iter().find(|tower| !towers.contains(*tower)) {
            if let (Tower::Reference, Some(preference)) = (tower, &config.train.preference) {
                let loss = serde_json::to_value(preference.loss).expect("a word");
                let loss = loss.as_str().unwrap_or_default();
                let why = format!("train.preference.loss `{loss}` does not use a reference model");
                return Err(format!("pools.{name}: {why}; leave the pool out (`~pools.{name}`)").into());
            }
            return Err(format!("pools.{name}: it is for the {tower} tower, which this model does not have").into());
        }
    }
    Ok(())
}

/// Returns the settings of a config that have no effect on this model: a sentence each.
pub fn without_effect(config: &RunConfig, model: &ModelConfig) -> Vec<String> {
    let dense = config
        .foundations()
        .into_iter()
        .filter(|(name, pool)| pool.expert_parallel > 1 && !model.foundation_of(*name).has_experts());
    let no_experts = dense.map(|(name, pool)| {
        let experts = pool.expert_parallel;
        format!("pools.{name}.expert_parallel is {experts} and has no effect: this model has no experts to distribute")
    });
    let pools = config.pools.encoders(model.towers.set());
    let is_frozen = |towers| config.model.has_frozen(towers);
    // Patterns may freeze all that there is; what is wrong with them is said elsewhere.
    let is_trained =
        |towers| encoder_specs(config, &model.towers.only(towers), &model.tree).is_ok_and(|specs| is_trained(&specs));
    let of_pools: Vec<String> =
        pools.iter().flat_map(|(name, pool, towers)| unused(config, *name, pool, !is_trained(*towers))).collect();
    let rates = pools.into_iter().filter(|(_, pool, towers)| pool.lr.is_some() && is_frozen(*towers));
    let rates = rates.map(|(name, ..)| format!("pools.{name}.lr has no effect: the pool's towers are frozen"));
    let on_host = config.train.optimizer.offload.as_ref().filter(|offload| offload.to == OffloadTo::Cpu);
    let same_memory = on_host.filter(|_| config.device == Device::Cpu).map(|_| {
        "train.optimizer.offload.to is cpu, which saves nothing with device: cpu, since its memory is the host's (to: disk does)".to_owned()
    });
    let on_gpus = matches!(config.device, Device::Cuda(_)) && config.run.products != Products::Auto;
    let products = on_gpus.then(|| {
        let name = config.run.products.name();
        format!("run.products is {name} and has no effect with device: cuda, also not in pools of encoders on the CPU")
    });
    no_experts.chain(rates).chain(of_pools).chain(same_memory).chain(products).chain(without_others(config)).collect()
}

/// Returns what does nothing without another key that is not set: a sentence each.
fn without_others(config: &RunConfig) -> Vec<String> {
    let (activations, weights) = (&config.memory.activation_budget, &config.memory.weight_budget);
    let budgets = [activations.foundation, activations.encoder, weights.foundation, weights.encoder];
    let is_idle = config.memory.throttle.is_some() && budgets.iter().all(Option::is_none);
    let throttle = is_idle.then(|| "memory.throttle has no effect: without a budget nothing is transferred".to_owned());
    let is_ring = |pool: &FoundationPool| pool.context_attention == ContextAttention::Ring;
    let alone = config.pools.written_foundations().filter(|(_, pool)| pool.context_parallel == 1 && !is_ring(pool));
    let alone = alone.map(|(key, _)| format!("{key}.context_attention has no effect: its context_parallel is 1"));
    let lanes = config.run.has_idle_lanes().then(|| "run.lanes has no effect: run.deterministic is false".to_owned());
    throttle.into_iter().chain(alone).chain(lanes).collect()
}

/// Returns the parts that are trained as a whole though the foundation has adapters, and of which nothing is said, a sentence each:
/// who asks for adapters seldom wants that.
pub fn whole_beside_adapters(config: &RunConfig, model: &ModelConfig) -> Vec<String> {
    if config.model.foundation.lora.is_none() {
        return Vec::new();
    }
    let Ok(specs) = encoder_specs(config, &model.towers, &model.tree) else { return Vec::new() };
    let trained = specs.iter().filter(|spec| spec.role == Role::Trained);
    let part_of = |spec: &ParamSpec| {
        let name = spec.pieces.first().map_or(spec.name.as_str(), |piece| piece.name.as_str());
        tower_part(config, &model.towers, name)
    };
    let silent = |(_, part): &(&'static str, &Part)| part.freeze.is_none() && part.lora.is_none();
    let mut keys: Vec<&'static str> = trained.map(part_of).filter(silent).map(|(key, _)| key).collect();
    keys.dedup();
    let said = |key| {
        format!(
            "{key} is trained as a whole beside the adapters of model.foundation: set {key}.freeze to true or false to make this \
             explicit"
        )
    };
    keys.into_iter().map(said).collect()
}

/// Returns notes about adapters whose checkpoints only the run can read: the weights that they are added to are in folders of parts.
pub fn adapters_without_base(config: &RunConfig) -> Option<String> {
    let model = &config.model;
    if !config.saves_adapters_only() || model.adapter_base().is_some() {
        return None;
    }
    let loaded: Vec<String> =
        model.parts().iter().filter(|(_, part)| part.load.is_some()).map(|(key, _)| format!("{key}.load")).collect();
    (!loaded.is_empty()).then(|| {
        format!(
            "warning: the adapters are added to weights in folders of parts ({}), and their checkpoints can name only one: they can be \
             resumed, but not evaluated, generated with, served or exported; set checkpoint.merge_lora: true to save whole models",
            loaded.join(", ")
        )
    })
}

/// Returns the settings of a pool of encoders that have no effect, as its towers are trained or it has no actors of its own.
fn unused(config: &RunConfig, name: PoolName, pool: &EncoderPool, is_frozen: bool) -> Vec<String> {
    let default = EncoderPool::default();
    let of_cache = [("cache", pool.cache.bytes() > 0 && !is_frozen), ("spill", pool.spill.bytes() > 0 && !is_frozen)];
    let trained = "its towers or projectors are trained, and the features change with every step";
    let (spill, no_cache) = ("spill", "it is for features that do not fit into `cache`, which is 0");
    let of_spill = [(spill, is_frozen && pool.spill.bytes() > 0 && pool.cache.bytes() == 0)];
    let is_colocated = config.pools.placement == Placement::Colocated;
    let of_actors = [
        ("device", pool.device != default.device),
        ("threads", pool.threads != default.threads),
        ("grace", pool.grace != default.grace),
    ];
    let actors = "encoders are colocated with the foundation and run in its actors";
    let of_cache = of_cache.into_iter().map(|(key, is_set)| (key, is_set, trained));
    let of_spill = of_spill.into_iter().map(|(key, is_set)| (key, is_set, no_cache));
    let of_actors = of_actors.into_iter().map(|(key, is_set)| (key, is_set && is_colocated, actors));
    let all = of_cache.chain(of_spill).chain(of_actors).filter(|(_, is_set, _)| *is_set);
    all.map(|(key, _, why)| format!("pools.{name}.{key} has no effect: {why}")).collect()
}
