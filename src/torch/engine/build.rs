//! An actor's engine from the run's configuration: device, groups, weights or checkpoint, parts.

use super::activations::Activations;
use super::cache_folder::{CacheFolder, cache_identity};
use super::carried::carried_tensors;
use super::elastic::Membership;
use super::encoder::{EncoderPart, TowerModels};
use super::exports::exports;
use super::foundation::FoundationPart;
use super::pack_work::EncoderPeers;
use super::pool_specs::{encoder_specs, kind, splits};
use super::samples::SampleSpec;
use super::share::{EncoderShare, FoundationShare};
use super::spill::Spill;
use super::torch_engine::TorchEngine;
use super::trained::trained;
use super::weights::initialize;
use crate::comm::{Mesh, ProcessGroup};
use crate::device::{load_cuda, set_intra_op_threads};
use crate::model::{ModelConfig, ModelTower, Towers};
use crate::native::{MemoryWatch, NativeError, is_dry_run, set_products};
use crate::params;
use crate::params::{ParamSpec, ParamStore, Sharding};
use crate::tape::Policy;
use crate::train::{AdamWConfig, AdapterFolder, Lanes, TrainState, has_adapter, load_adapter, load_state};
use loongforge_core::config::{Device, EncoderPool, Layout, Part, Placement, Recompute, RunConfig};
use loongforge_core::engine::EngineError;
use loongforge_core::message::{ActorId, PoolName, Replica, Role, StepId, Tower, TowerSet};
use loongforge_core::schedule::PoolSizes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// Sets how long a collective waits for a replica that does not come.
const COLLECTIVE_TIMEOUT: Duration = Duration::from_secs(600);

/// Holds what an actor's engine is made from.
pub struct EngineSpec {
    pub config: RunConfig,
    pub model: ModelConfig,
    pub me: ActorId,
    /// Folder in which the pools' replicas find each other, made for this run.
    pub rendezvous: PathBuf,
    /// The rank of this process on its host, where a launcher says so: the GPU that it takes.
    pub local_rank: Option<u32>,
    /// Checkpoint to go on from, and the step that comes next.
    pub resume: Option<(PathBuf, StepId)>,
    /// Tokens that end what is generated in an evaluation.
    pub stop_token_ids: Vec<i64>,
    /// How pictures and clips are made of prompts while the run goes on.
    pub samples: Option<SampleSpec>,
}

/// Builds the engine of an encoder or foundation actor on the thread that will run it.
///
/// # Errors
/// The device is absent, a replica does not come, or weights or checkpoint are missing, torn or of another model.
pub fn build_engine(spec: &EngineSpec) -> Result<TorchEngine, EngineError> {
    let pools = &spec.config.pools;
    let own = own_pool(spec);
    let number = spec.local_rank.map_or_else(|| number_of(spec), |rank| rank as usize);
    let wanted = own.as_ref().and_then(|own| own.pool.device).unwrap_or(spec.config.device);
    let device = match is_dry_run() {
        true => tch::Device::Cpu,
        false => open_device_of(&wanted, number)?,
    };
    if !is_dry_run() {
        set_intra_op_threads(spec.config.threads_for(spec.me.pool));
    }
    if device == tch::Device::Cpu {
        set_products(spec.config.run.products)?;
    }
    let memory = MemoryWatch::start();
    let encodes = match pools.placement {
        Placement::Colocated => spec.me.role == Role::Foundation,
        Placement::Separate => spec.me.role == Role::Encoder,
    };
    let mut exports = exports(&spec.config, &spec.model, spec.me)?;
    for (of, tensors) in carried_tensors(&spec.config, &spec.model)? {
        exports = exports.carrying(of, tensors, spec.me == ActorId::foundation(0));
    }
    let encoder = own.as_ref().filter(|_| encodes).map(|own| build_encoder(spec, own, device)).transpose()?;
    let foundation = if spec.me.role == Role::Foundation { Some(build_foundation(spec, device)?) } else { None };
    let first_step = spec.resume.as_ref().map_or(StepId(0), |(_, step)| *step);
    // As the scheduler knows it, which does not know the parameters.
    let goes_ahead =
        foundation.is_none() && own.as_ref().is_some_and(|own| spec.config.model.has_frozen(own.towers.set()));
    let engine = TorchEngine::new(encoder, foundation, exports, first_step).going_ahead(goes_ahead);
    let encoder_lr = own.and_then(|own| own.pool.lr).map_or(1.0, |lr| lr / spec.config.train.lr);
    let own_weights = spec.samples.as_ref().is_some_and(|samples| samples.own_weights);
    let engine = engine.with_encoder_lr(encoder_lr).sampling_own_weights(own_weights);
    Ok(engine.saving_in_background(spec.config.checkpoint.in_background).counting(memory))
}

/// The encoder pool that an actor is of, or has in itself.
struct OwnPool<'a> {
    name: PoolName,
    pool: &'a EncoderPool,
    /// The towers that it holds.
    towers: Towers,
}

/// `None` for a foundation that has no encoder, and where the pool holds no tower of the model.
fn own_pool(spec: &EngineSpec) -> Option<OwnPool<'_>> {
    let pools = &spec.config.pools;
    let all = &spec.model.towers;
    let name = if pools.placement == Placement::Colocated { PoolName::ENCODER } else { spec.me.pool };
    let (name, pool, set) = pools.encoders(all.set()).into_iter().find(|(other, ..)| *other == name)?;
    Some(OwnPool { name, pool, towers: all.only(set) })
}

/// The actor's number among those that compute: they take one GPU after the other, first the foundation's.
fn number_of(spec: &EngineSpec) -> usize {
    let sizes = PoolSizes::new(&spec.config, spec.model.towers.set());
    let pools = sizes.foundations.iter().chain(&sizes.encoders);
    let before = pools.take_while(|pool| pool.name != spec.me.pool).map(|pool| pool.actors).sum::<u32>();
    (before + spec.me.index) as usize
}

/// The file that features go to which an encoder's cache has no memory for.
fn spill(config: &RunConfig, own: &OwnPool<'_>) -> Result<Option<Spill>, EngineError> {
    let bytes = if is_dry_run() { 0 } else { own.pool.spill.bytes() };
    let folder = &config.run.dir;
    let file = (bytes > 0).then(|| Spill::new(folder, bytes)).transpose();
    file.map_err(|error| format!("pools.{}.spill: a file in {}: {error}", own.name, folder.display()).into())
}

/// The folders of what the towers of a pool make, in `dir`.
fn cache_folders(
    config: &RunConfig,
    own: &OwnPool<'_>,
    params: &ParamStore,
    dir: &Path,
) -> Result<BTreeMap<Tower, CacheFolder>, EngineError> {
    let key = format!("pools.{}.cache_dir", own.name);
    if params.num_trained() > 0 {
        return Err(format!("{key}: features change with every step, since towers of the pool are trained").into());
    }
    if own.pool.tensor_parallel > 1 || own.pool.zero > 2 {
        return Err(
            format!("{key}: the pool's actors must have whole parameters: tensor_parallel 1, zero below 3").into()
        );
    }
    let open = |it: &ModelTower| {
        let name = cache_identity(it, &own.towers, params, config.run.products);
        let folder = CacheFolder::open(dir, &name).map_err(|error| format!("{key}: {}: {error}", dir.display()))?;
        Ok((it.tower, folder))
    };
    own.towers.iter().map(open).collect()
}

/// This rank's part of an encoder, which has all towers of its pool.
fn build_encoder(spec: &EngineSpec, own: &OwnPool<'_>, device: tch::Device) -> Result<EncoderPart, EngineError> {
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
    let params = encoder_specs(config, &share.towers, &spec.model.tree)?;
    let pool = build_pool(spec, device, params, lanes, mesh.data.clone(), share.sharding())?;
    let mut pool = settle(spec, name, share.join(pool))?;
    let replica = |index| Replica::new(own.name, index);
    let membership =
        elastic.then(|| Membership::new(replica(spec.me.index), layout.ranks() as u32, spec.rendezvous.clone()));
    if elastic {
        pool = pool.elastic(rank);
    }
    let model = TowerModels::new(&share.towers, pool.params(), |tower| policy(config.model.tower_part(tower, false).1));
    let (budget, key) = (config.memory.activation_budget.encoder, "memory.activation_budget.encoder");
    let activations = Activations::new(&config.memory, key, budget, device)?;
    let index = if elastic { spec.me.index } else { mesh.place().dp as u32 };
    let mut part = EncoderPart::new(replica(index), model, pool, membership).with_activations(activations);
    if !colocated {
        part = part.with_item_credit(config.edges.pixels.credit.bytes() as usize, &share.towers);
    }
    part = part.with_cache(own.pool.cache.bytes()).with_spill(spill(config, own)?);
    match &own.pool.cache_dir {
        Some(dir) if !is_dry_run() => {
            let folders = cache_folders(config, own, part.pool.params(), dir)?;
            Ok(part.with_cache_folders(folders))
        }
        _ => Ok(part),
    }
}

/// This rank's part of the foundation.
fn build_foundation(spec: &EngineSpec, device: tch::Device) -> Result<FoundationPart, EngineError> {
    let (config, pools, part) = (&spec.config, &spec.config.pools, &spec.config.model.foundation);
    let (store, rank) = (spec.rendezvous.join("foundation"), spec.me.index as usize);
    let layout = pools.foundation.layout();
    let mesh = Rc::new(join(&store, "foundation", layout, rank, device)?);
    let share = FoundationShare::new(&spec.model.foundation, mesh.clone(), splits(&pools.foundation))?;
    let params = trained(share.specs(), &spec.model.tree, |_| ("model.foundation", part))?;
    let (lanes, group) = (Lanes::PerReplica, mesh.data.clone());
    let pool = build_pool(spec, device, params, lanes, group, share.sharding())?;
    let pool = settle(spec, "foundation", share.join(pool))?;
    let stages = share.stages(pool.params(), policy(part));
    let (budget, key) = (config.memory.activation_budget.foundation, "memory.activation_budget.foundation");
    let activations = Activations::new(&config.memory, key, budget, device)?;
    let mut part = FoundationPart::on(mesh.place().dp as u32, stages, pool, false).with_encoders(peers(spec)?);
    if pools.placement == Placement::Colocated {
        part = part.with_colocated_encoders();
    }
    let making = spec.samples.as_ref().map(|samples| samples.making(config, device)).transpose()?;
    let part = part.with_activations(activations).with_stop_tokens(spec.stop_token_ids.clone());
    Ok(part.with_sample_making(making))
}

/// The encoder pools whose features a foundation reads.
fn peers(spec: &EngineSpec) -> Result<BTreeMap<PoolName, EncoderPeers>, EngineError> {
    let ModelConfig { towers, tree, .. } = &spec.model;
    let peers = |(name, pool, set): (PoolName, &EncoderPool, TowerSet)| {
        let trained = is_trained(&encoder_specs(&spec.config, &towers.only(set), tree)?);
        Ok((name, EncoderPeers { trained, ranks: pool.tensor_parallel as u32 }))
    };
    spec.config.pools.encoders(towers.set()).into_iter().map(peers).collect()
}

fn join(store: &Path, name: &str, layout: Layout, rank: usize, device: tch::Device) -> Result<Mesh, NativeError> {
    match is_dry_run() {
        true => Ok(Mesh::dry(layout, rank)),
        false => Mesh::join_on(store, name, layout, rank, COLLECTIVE_TIMEOUT, device),
    }
}

fn is_trained(specs: &[ParamSpec]) -> bool {
    specs.iter().any(|spec| spec.role == params::Role::Trained)
}

/// A pool with the weights that a run begins with; what is trained apart from them is for [`settle`].
fn build_pool(
    spec: &EngineSpec,
    device: tch::Device,
    params: Vec<ParamSpec>,
    lanes: Lanes,
    group: Rc<ProcessGroup>,
    sharding: Sharding,
) -> Result<TrainState, EngineError> {
    let is_trained = is_trained(&params);
    let train = &spec.config.train;
    let params = Rc::new(ParamStore::shared_out(params, kind(train.precision), device, sharding));
    // In a dry run parameters have no values.
    if !is_dry_run() && (spec.resume.is_none() || begins_with_base(spec, &params)) {
        initialize(&spec.config, &params)?;
    }
    let optimizer = AdamWConfig {
        betas: train.optimizer.betas,
        eps: train.optimizer.eps,
        weight_decay: train.optimizer.weight_decay,
    };
    Ok(TrainState::new(params, group, lanes, is_trained.then_some(optimizer))?.with_ema(train.ema))
}

/// Returns whether a checkpoint lacks weights of the pool: it has adapters without their base.
fn begins_with_base(spec: &EngineSpec, params: &ParamStore) -> bool {
    has_adapter(params) || spec.config.saves_adapters_only()
}

/// Fills the adapters of pool `name`, or all that a checkpoint has of it.
fn settle(spec: &EngineSpec, name: &str, mut pool: TrainState) -> Result<TrainState, EngineError> {
    if is_dry_run() {
        return Ok(pool);
    }
    let from_base = begins_with_base(spec, pool.params());
    if spec.resume.is_none() || from_base {
        pool.init_magnitudes()?;
    }
    match &spec.resume {
        None => continue_adapter(spec, name, pool.params())?,
        Some((folder, _)) => load_state(&mut pool, folder, name, !from_base)?,
    }
    pool.refresh_norms()?;
    Ok(pool)
}

/// Fills a pool's adapters from the folders that `lora.adapter` names, a part at a time.
fn continue_adapter(spec: &EngineSpec, pool: &str, params: &ParamStore) -> Result<(), EngineError> {
    let (model, tree) = (&spec.config.model, &spec.model.tree);
    let folder = |part: &Part| part.lora.as_ref().and_then(|lora| lora.adapter.clone());
    let load = |part: &Part, is_own: &dyn Fn(&str) -> bool| -> Result<(), EngineError> {
        let Some(folder) = folder(part) else { return Ok(()) };
        Ok(load_adapter(params, &AdapterFolder::open(folder.as_path())?, tree, is_own)?)
    };
    if pool == "foundation" {
        return load(&model.foundation, &|_| true);
    }
    let towers = own_pool(spec).map(|own| own.towers).unwrap_or_default();
    towers.iter().flat_map(|it| [(it.tower, false), (it.tower, true)]).try_for_each(|(tower, is_projector)| {
        load(model.tower_part(tower, is_projector).1, &|name| towers.part_of(name) == Some((tower, is_projector)))
    })
}

fn policy(part: &Part) -> Policy {
    match part.recompute {
        Recompute::None => Policy::Keep,
        Recompute::All => Policy::Recompute,
    }
}

/// The device of the configuration; loads the CUDA libraries when they are asked for.
///
/// # Errors
/// There is no such device on this machine.
pub fn open_device(device: &Device) -> Result<tch::Device, EngineError> {
    open_device_of(device, 0)
}

/// Works like [`open_device`], of the process that is `number` on its host: of `cuda` without a number each takes the
/// next GPU, in turns.
fn open_device_of(device: &Device, number: usize) -> Result<tch::Device, EngineError> {
    // Where nobody has settled it before.
    match crate::device::settle(*device).0 {
        Device::Cpu | Device::Auto => Ok(tch::Device::Cpu),
        Device::Cuda(index) => {
            load_cuda()?;
            let count = tch::Cuda::device_count();
            let index = index.map_or(number % count.max(1) as usize, |index| index as usize);
            if index as i64 >= count {
                return Err(format!("device: cuda:{index} was asked for and there are {count} CUDA devices").into());
            }
            Ok(tch::Device::Cuda(index))
        }
    }
}
