//! Describes whether the engines of a run can be built: asked of its config and its model by the functions that build
//! them, before there are actors, groups, memory or weights.

use super::actor_spec::is_trained;
use super::build_cached::expect_whole;
use super::exports::exports;
use super::optimizer::check_optimizer;
use super::pool_specs::{encoder_specs, splits, tower_part};
use super::share::{FoundationPlan, divided_towers};
use super::trained::{check_patterns, trained, trained_stage};
use super::weight_budget::{encoder_within_budget, foundation_within_budget};
use crate::model::ModelConfig;
use crate::params::{ParallelRank, ParamSpec, Role};
use loongforge_core::config::{Device, EncoderPool, OffloadTo, Part, Placement, RunConfig};
use loongforge_core::engine::EngineError;
use loongforge_core::message::{ActorId, PoolName};

/// Checks layout, stages, adapters and checkpoints of every actor.
///
/// # Errors
/// The first thing for which an actor could not build its engine, or could not run a pack.
pub fn check_engines(config: &RunConfig, model: &ModelConfig) -> Result<(), EngineError> {
    let pools = &config.pools;
    for (name, pool) in config.foundations() {
        let (layout, splits) = (pool.layout(), splits(&pool));
        let parallel = ParallelRank::first(layout, splits.sequence_parallel);
        let plan = FoundationPlan::new(model.foundation_of(name), layout, &parallel, &splits, name)?;
        for stage in 0..layout.pp {
            let part = &config.model.foundation;
            let specs = trained_stage(plan.specs(stage), &model.tree, |_| ("model.foundation", part))?;
            check_optimizer(config, &specs, name.as_str())?;
            foundation_within_budget(config, specs)?;
        }
        let part_of = |_: &str| ("model.foundation", &config.model.foundation);
        check_patterns(&trained(model.foundation_of(name).specs(), &model.tree, part_of)?, [part_of("")], part_of)?;
        exports(config, model, ActorId::foundation_of(name, 0))?;
    }
    let of_towers = encoder_specs(config, &model.towers, &model.tree)?;
    let towers = model.towers.set();
    let parts = towers.iter().flat_map(|tower| [false, true].map(|of| config.model.tower_part(tower, of)));
    check_patterns(&of_towers, parts, |name| tower_part(config, &model.towers, name))?;
    check_options(model)?;
    check_insulated(config, model)?;
    check_delay(model)?;
    check_acting(config, model)?;
    for (name, pool, set) in pools.encoders(towers) {
        // On the foundation's actors every encoder is whole.
        let parallel = match pools.placement {
            Placement::Colocated => ParallelRank::default(),
            Placement::Separate => ParallelRank::first(pool.layout(), false),
        };
        let divided = divided_towers(&model.towers.only(set), &parallel);
        let divided = divided.map_err(|found| format!("pools.{name}: {found}"))?;
        let specs = encoder_specs(config, &divided, &model.tree)?;
        check_optimizer(config, &specs, name.as_str())?;
        if pool.cache_dir.is_some() {
            expect_whole(name, pool, is_trained(&specs))?;
        }
        encoder_within_budget(config, specs)?;
    }
    for (name, pool, set) in pools.encoders(towers) {
        if pool.reads() && !config.model.has_frozen(set) {
            let why = "features of towers that are trained change with every step";
            return Err(format!("pools.{name}.replicas is 0, and the pool is trained: {why}").into());
        }
    }
    for (name, pool) in &pools.named {
        if let Some(tower) = pool.held(*name).iter().find(|tower| !towers.contains(*tower)) {
            return Err(format!("pools.{name}: it holds the {tower} tower, which this model does not have").into());
        }
    }
    Ok(())
}

/// A policy learns as its settings ask.
fn check_options(model: &ModelConfig) -> Result<(), EngineError> {
    let found = model.foundation.as_policy().and_then(|policy| policy.cannot());
    found.map_or(Ok(()), |reason| Err(reason.into()))
}

/// A policy whose prefix has no gradient of its actions learns there from tokens, or is frozen; what learns tokens is trained.
fn check_insulated(config: &RunConfig, model: &ModelConfig) -> Result<(), EngineError> {
    let Some(policy) = model.foundation.as_policy() else { return Ok(()) };
    let (insulate, learns) = (policy.options().insulate, policy.options().token_weight > 0.0);
    if insulate && policy.chunk().writes {
        return Err(
            "policy.insulate: Pi0-FAST has no action expert, whose gradient could be kept out; leave it out".into()
        );
    }
    if !insulate && !learns {
        return Ok(());
    }
    let foundation =
        trained(model.foundation.specs(), &model.tree, |_| ("model.foundation", &config.model.foundation))?;
    let of_prefix = foundation.into_iter().filter(|spec| policy.is_of_prefix(&spec.name));
    let mut prefix = of_prefix.chain(encoder_specs(config, &model.towers, &model.tree)?);
    match (prefix.any(|spec| spec.role == Role::Trained), learns) {
        (false, true) => Err("policy.token_weight: nothing of the vision-language model is trained, which alone learns from tokens; train \
                              it, or set the weight to 0"
            .into()),
        (true, false) => {
            let why = "gradients of actions end at the prefix, and policy.token_weight is 0";
            let how = "set policy.token_weight to have it learn action tokens (pi05, pi0), freeze it by the keys of its config under model.overrides (Pi and SmolVLA: train_expert_only=true, SmolVLA \
                       train_state_proj=false as well; X-VLA: freeze_vision_encoder and freeze_language_encoder; GR00T: \
                       tune_llm=false and tune_visual=false), or leave insulate out";
            Err(format!("policy.insulate: {why}, so that nothing would train it; {how}").into())
        }
        (true, true) | (false, false) => Ok(()),
    }
}

/// A policy that is asked to act while the run goes on makes actions of noise.
fn check_acting(config: &RunConfig, model: &ModelConfig) -> Result<(), EngineError> {
    let is_asked = config.eval.as_ref().and_then(|eval| eval.actions).is_some_and(|count| count > 0);
    if is_asked && model.foundation.as_policy().is_some_and(|policy| policy.chunk().writes) {
        return Err("eval.actions: Pi0-FAST writes actions as tokens, and does not act while the run goes on; leave the key out: \
                    actions are compared after the run in any case"
            .into());
    }
    Ok(())
}

/// A chunk that has begun can be gone on with, and something of it is left.
fn check_delay(model: &ModelConfig) -> Result<(), EngineError> {
    let Some(policy) = model.foundation.as_policy() else { return Ok(()) };
    let (most, horizon) = (policy.options().max_delay, policy.chunk().horizon);
    if most > 0 && !policy.continues_chunks() {
        let why = match policy.chunk().writes {
            true => "it writes actions as tokens",
            false => "its actions have one time of noise, and given ones need another",
        };
        return Err(format!(
            "policy.max_delay is {most}, and this policy cannot go on with a chunk: {why} (Pi0.5 can)"
        )
        .into());
    }
    match i64::from(most) < horizon {
        true => Ok(()),
        false => {
            Err(format!("policy.max_delay is {most}: a chunk has {horizon} actions, and some must be left to learn")
                .into())
        }
    }
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
    // Patterns may freeze all that there is; what is wrong with them is said elsewhere.
    let is_trained =
        |towers| encoder_specs(config, &model.towers.only(towers), &model.tree).is_ok_and(|specs| is_trained(&specs));
    let of_pools: Vec<String> =
        pools.iter().flat_map(|(name, pool, towers)| unused(config, *name, pool, !is_trained(*towers))).collect();
    let rates = pools.into_iter().filter(|(_, pool, towers)| pool.lr.is_some() && is_frozen(*towers));
    let rates = rates.map(|(name, ..)| format!("pools.{name}.lr has no effect: the pool's towers are frozen"));
    let on_host = config.train.optimizer.offload.as_ref().filter(|offload| offload.to == OffloadTo::Cpu);
    let same_memory = on_host.filter(|_| config.device == Device::Cpu).map(|_| {
        "train.optimizer.offload.to is cpu and saves nothing on device: cpu, whose memory is the host's (to: disk does)".to_owned()
    });
    no_experts.chain(rates).chain(of_pools).chain(same_memory).collect()
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
        format!("{key} is trained whole beside the adapters of model.foundation: set {key}.freeze to say whether it is")
    };
    keys.into_iter().map(said).collect()
}

/// Returns what is set of a pool of encoders and does nothing, as its towers are trained or it has no actors of its own.
fn unused(config: &RunConfig, name: PoolName, pool: &EncoderPool, is_frozen: bool) -> Vec<String> {
    let default = EncoderPool::default();
    let of_cache = [("cache", pool.cache.bytes() > 0 && !is_frozen), ("spill", pool.spill.bytes() > 0 && !is_frozen)];
    let trained = "the pool's towers are trained, and their features change with every step";
    let (spill, no_cache) = ("spill", "it is for features that have no room in `cache`, which is 0");
    let of_spill = [(spill, is_frozen && pool.spill.bytes() > 0 && pool.cache.bytes() == 0)];
    let is_colocated = config.pools.placement == Placement::Colocated;
    let of_actors = [
        ("device", pool.device != default.device),
        ("threads", pool.threads != default.threads),
        ("grace", pool.grace != default.grace),
    ];
    let actors = "encoders are colocated with the foundation, and are those of its actors";
    let of_cache = of_cache.into_iter().map(|(key, is_set)| (key, is_set, trained));
    let of_spill = of_spill.into_iter().map(|(key, is_set)| (key, is_set, no_cache));
    let of_actors = of_actors.into_iter().map(|(key, is_set)| (key, is_set && is_colocated, actors));
    let all = of_cache.chain(of_spill).chain(of_actors).filter(|(_, is_set, _)| *is_set);
    all.map(|(key, _, why)| format!("pools.{name}.{key} has no effect: {why}")).collect()
}
