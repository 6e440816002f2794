//! An actor's engine from the run's configuration: device, groups, weights or checkpoint, parts.

use super::activations::Activations;
use super::actor_spec::{EngineSpec, OwnPool, build_state, is_trained, own_pool, policy, settle, settle_thread};
use super::build_cached::{build_reader, cache_folders};
use super::carried::carried_tensors;
use super::elastic::Membership;
use super::encoder::{EncoderWorker, TowerModels};
use super::exports::exports;
use super::foundation::{Actor, FoundationWorker};
use super::pack_work::EncoderPeers;
use super::pool_specs::{encoder_specs, splits};
use super::share::{EncoderShare, FoundationShare};
use super::spill::Spill;
use super::step_profile::StepProfile;
use super::torch_engine::{EngineOptions, TorchEngine};
use super::trained::trained_stage;
use super::untrained::UntrainedShare;
use super::weight_budget::{both_within_budget, encoder_within_budget};
use crate::comm::Mesh;
use crate::model::ModelConfig;
use crate::native::{MemoryWatch, NativeError, is_dry_run};
use crate::train::Lanes;
use loongforge_core::config::{EncoderPool, Layout, Placement, RunConfig};
use loongforge_core::engine::EngineError;
use loongforge_core::message::{ActorId, PoolName, Replica, Role, StepId, TowerPart, TowerSet};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// Sets how long a collective waits for a replica that does not come.
const COLLECTIVE_TIMEOUT: Duration = Duration::from_secs(600);

/// Builds the engine of an encoder or foundation actor on the thread that will run it.
///
/// # Errors
/// The device is absent, a replica does not come, or weights or checkpoint are missing, torn or of another model.
pub fn build_engine(spec: &EngineSpec) -> Result<TorchEngine, EngineError> {
    let pools = &spec.config.pools;
    let own = own_pool(spec);
    let device = settle_thread(spec, own.as_ref())?;
    let memory = MemoryWatch::start();
    let encodes = match pools.placement {
        Placement::Colocated => spec.me.role == Role::Foundation,
        Placement::Separate => spec.me.role == Role::Encoder,
    };
    let mut exports = exports(&spec.config, &spec.model, spec.me)?;
    for (of, tensors) in carried_tensors(&spec.config, &spec.model)? {
        exports = exports.carrying(of, tensors, Some(spec.me) == first_foundation(&spec.config));
    }
    let build = |own: &OwnPool<'_>| match spec.reads {
        true => build_reader(spec, own),
        false => build_encoder(spec, own, device),
    };
    let encoder = own.as_ref().filter(|_| encodes).map(build).transpose()?;
    let foundation = if spec.me.role == Role::Foundation { Some(build_foundation(spec, device)?) } else { None };
    let first_step = spec.resume.as_ref().map_or(StepId(0), |(_, step)| *step);
    // As the scheduler knows it, which does not know the parameters.
    let goes_ahead =
        foundation.is_none() && own.as_ref().is_some_and(|own| spec.config.model.has_frozen(own.towers.set()));
    let options = EngineOptions {
        goes_ahead,
        encoder_lr: own.and_then(|own| own.pool.lr).map_or(1.0, |lr| lr / spec.config.train.lr),
        samples_own_weights: spec.samples.as_ref().is_some_and(|samples| samples.own_weights),
        saves_in_background: spec.config.checkpoint.in_background,
        memory,
        profile: StepProfile::new(&spec.config, spec.me, device, first_step),
    };
    Ok(TorchEngine::new(encoder, foundation, exports, first_step, options))
}

/// Returns the first actor of the first foundation pool.
fn first_foundation(config: &RunConfig) -> Option<ActorId> {
    config.foundations().first().map(|(name, _)| ActorId::foundation_of(*name, 0))
}

/// Returns the file that features go to which an encoder's cache has no memory for.
fn spill(config: &RunConfig, own: &OwnPool<'_>) -> Result<Option<Spill>, EngineError> {
    let bytes = if is_dry_run() { 0 } else { own.pool.spill.bytes() };
    let folder = &config.run.dir;
    let file = (bytes > 0).then(|| Spill::new(folder, bytes)).transpose();
    file.map_err(|error| {
        format!("pools.{}.spill: cannot create a file in {}: {error}", own.name, folder.display()).into()
    })
}

/// This rank's part of an encoder, which has all towers of its pool.
fn build_encoder(spec: &EngineSpec, own: &OwnPool<'_>, device: tch::Device) -> Result<EncoderWorker, EngineError> {
    let (config, pools) = (&spec.config, &spec.config.pools);
    let lanes = match config.run.deterministic {
        true => Lanes::Fixed(config.num_lanes(own.pool) as u32),
        false => Lanes::PerReplica,
    };
    // On actors of their own encoders come and go; those in the foundation's actors are of its gang.
    let colocated = pools.placement == Placement::Colocated;
    let elastic = !colocated && own.pool.is_elastic();
    let layout = match colocated {
        true => Layout::replicas(pools.foundation.layout().ranks()),
        false => own.pool.layout(),
    };
    let name = own.name.as_str();
    let (store, rank) = (spec.rendezvous.join(name), spec.me.index as usize);
    let mesh = match elastic {
        true => Mesh::single(),
        false => join(&store, name, layout, rank, device)?,
    };
    let mesh = Rc::new(mesh);
    let share = EncoderShare::new(&own.towers, mesh.clone(), own.pool.zero)
        .map_err(|found| format!("pools.{name}: {found}"))?;
    let params = encoder_within_budget(config, encoder_specs(config, &share.towers, &spec.model.tree)?)?;
    let state = build_state(spec, device, params, lanes, mesh.data.clone(), share.sharding())?;
    let mut state = settle(spec, name, share.join(state))?;
    let replica = |index| Replica::new(own.name, index);
    let membership =
        elastic.then(|| Membership::new(replica(spec.me.index), layout.ranks() as u32, spec.rendezvous.clone()));
    if elastic {
        state = state.elastic(rank);
    }
    let part = |tower| config.model.tower_part(tower, TowerPart::Encoder).1;
    let model = TowerModels::new(&share.towers, state.params(), |tower| policy(part(tower)));
    let (budget, key) = (config.memory.activation_budget.encoder, "memory.activation_budget.encoder");
    let activations = Activations::new(&config.memory, key, budget, device)?;
    let index = if elastic { spec.me.index } else { mesh.place().dp as u32 };
    let worker = EncoderWorker::new(replica(index), model, state, membership).with_activations(activations);
    let mut worker = worker.with_trained(trained_towers(spec, own.towers.set())?);
    worker = worker.one_by_one(config.run.deterministic);
    if !colocated {
        worker = worker.with_item_credit(config.edges.pixels.credit.bytes() as usize, &share.towers);
    }
    worker = worker.with_cache(own.pool.cache.bytes()).with_spill(spill(config, own)?);
    match &own.pool.cache_dir {
        Some(dir) if !is_dry_run() => {
            let folders = cache_folders(spec, own, worker.state.params(), dir)?;
            Ok(worker.with_cache_folders(folders))
        }
        _ => Ok(worker),
    }
}

/// This rank's part of the foundation.
fn build_foundation(spec: &EngineSpec, device: tch::Device) -> Result<FoundationWorker, EngineError> {
    let (config, part, name) = (&spec.config, &spec.config.model.foundation, spec.me.pool);
    let own = config.foundation_pool(name);
    let (store, rank) = (spec.rendezvous.join(name.as_str()), spec.me.index as usize);
    let mesh = Rc::new(join(&store, name.as_str(), own.layout(), rank, device)?);
    let share = FoundationShare::new(spec.model.foundation_of(name), mesh.clone(), splits(&own), name)?;
    let params = trained_stage(share.specs(), &spec.model.tree, |_| ("model.foundation", part))?;
    let untrained = UntrainedShare::of(spec, &mesh)?;
    let besides = untrained.as_ref().map(UntrainedShare::params).transpose()?.unwrap_or_default();
    let [params, besides] = both_within_budget(config, params, besides)?;
    let (lanes, group) = (Lanes::PerReplica, mesh.data.clone());
    let state = build_state(spec, device, params, lanes, group, share.sharding())?;
    let state = settle(spec, name.as_str(), share.join(state))?;
    let stages = share.stages(state.params(), policy(part));
    let (budget, key) = (config.memory.activation_budget.foundation, "memory.activation_budget.foundation");
    let activations = Activations::new(&config.memory, key, budget, device)?;
    let replica = Replica::new(name, mesh.place().dp as u32);
    let mut worker = FoundationWorker::new(replica, stages, state, peers(spec)?);
    if config.pools.placement == Placement::Colocated {
        worker = worker.with_colocated_encoders();
    }
    let untrained = untrained.map(|share| share.build(device, besides)).transpose()?;
    let making = spec.samples.as_ref().map(|it| it.making(config, device, name, mesh.is_leader(), untrained));
    let making = making.transpose()?;
    let worker = worker.with_activations(activations).with_stop_tokens(spec.stop_token_ids.clone());
    // Weights that a tape brings bit by bit are not there for it; a run that has such does not ask (`eval.actions`).
    let family = spec.model.foundation_of(name);
    let actor =
        (config.num_acted() > 0).then(|| Actor::of(&**family, worker.rank.state.params(), config.run.seed)).flatten();
    Ok(worker.with_sample_making(making).with_actor(actor))
}

/// Returns the encoder pools whose features a foundation reads.
fn peers(spec: &EngineSpec) -> Result<BTreeMap<PoolName, EncoderPeers>, EngineError> {
    let peers = |(name, pool, set): (PoolName, &EncoderPool, TowerSet)| {
        let trained = trained_towers(spec, set)?;
        let frozen = set.iter().filter(|&tower| !trained.contains(tower)).collect();
        Ok((name, EncoderPeers { trained, frozen, ranks: pool.tensor_parallel as u32 }))
    };
    spec.config.pools.encoders(spec.model.towers.set()).into_iter().map(peers).collect()
}

/// Returns the towers of `set` of which something is trained: nobody waits for gradients of the features of others.
fn trained_towers(spec: &EngineSpec, set: TowerSet) -> Result<TowerSet, EngineError> {
    let ModelConfig { towers, tree, .. } = &spec.model;
    let mut trained = Vec::new();
    for tower in set.iter() {
        let alone = towers.only([tower].into_iter().collect());
        if is_trained(&encoder_specs(&spec.config, &alone, tree)?) {
            trained.push(tower);
        }
    }
    Ok(trained.into_iter().collect())
}

fn join(store: &Path, name: &str, layout: Layout, rank: usize, device: tch::Device) -> Result<Mesh, NativeError> {
    match is_dry_run() {
        true => Ok(Mesh::dry(layout, rank)),
        false => Mesh::join_on(store, name, layout, rank, COLLECTIVE_TIMEOUT, device),
    }
}
