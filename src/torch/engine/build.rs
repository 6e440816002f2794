//! An actor's engine from the run's configuration: device, groups, weights or checkpoint, parts.

use super::activations::Activations;
use super::elastic::Membership;
use super::encoder::EncoderPart;
use super::family::Families;
use super::foundation::FoundationPart;
use super::spill::Spill;
use super::stages::Stages;
use super::torch_engine::{Exports, TorchEngine};
use super::trained::{lora_config, trained};
use crate::comm::{Mesh, ProcessGroup};
use crate::device::{load_cuda, set_intra_op_threads};
use crate::model::{EncoderFamily, FoundationFamily, Stage};
use crate::nn::{self, Division, ParamSpec, ParamStore, Sharding, Shared};
use crate::tape::Policy;
use crate::train::hf::{Checkpoint, LoadOptions, MAX_SHARD_SIZE, Origin, load_weights_from, num_shards};
use crate::train::{
    AdamWConfig, AdapterFile, ENCODER_PREFIX, Export, Lanes, Pool, has_adapter, load_adapter, load_state,
    read_adapter_config,
};
use loongforge_core::config::{Device, Lora, Part, Placement, PoolName, Precision, Recompute, RunConfig, Weights};
use loongforge_core::engine::EngineError;
use loongforge_core::message::{ActorId, Role, StepId};
use loongforge_core::schedule::Pipeline;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use tch::Kind;

/// How long a collective waits for a replica that does not come.
const COLLECTIVE_TIMEOUT: Duration = Duration::from_secs(600);

/// What an actor's engine is made from.
pub struct EngineSpec {
    pub config: RunConfig,
    pub families: Families,
    pub me: ActorId,
    /// Folder in which the pools' replicas find each other, made for this run.
    pub rendezvous: PathBuf,
    /// Checkpoint to go on from, and the step that comes next.
    pub resume: Option<(PathBuf, StepId)>,
}

/// Builds the engine of an encoder or foundation actor on the thread that will run it.
///
/// # Errors
/// The device is absent, a replica does not come, or weights or checkpoint are missing, torn or of another model.
pub fn build_engine(spec: &EngineSpec) -> Result<TorchEngine, EngineError> {
    let pools = &spec.config.pools;
    let pool = if spec.me.role == Role::Encoder { PoolName::Encoder } else { PoolName::Foundation };
    let device = open_device(&spec.config.device)?;
    set_intra_op_threads(spec.config.threads_for(pool));
    if device.is_cuda() && pools.encoder.replicas.max(pools.foundation.layout().ranks()) > 1 {
        return Err("device: cuda takes one replica a pool until NCCL groups are there; set replicas: 1".into());
    }
    if pools.encoder.tensor_parallel > 1 {
        return Err("pools.encoder.tensor_parallel: runs have it 1 for now".into());
    }
    let colocated = pools.placement == Placement::Colocated;
    let layout = pools.foundation.layout();
    let (num_encoders, encodes) = match colocated {
        true => (layout.ranks(), spec.me.role == Role::Foundation),
        false => (pools.encoder.replicas, spec.me.role == Role::Encoder),
    };
    let exports = exports(spec)?;
    let encoder_part = &spec.config.model.image_encoder;
    let encoder = match &spec.families.encoder {
        Some(family) if encodes => {
            let lanes = match spec.config.run.deterministic {
                true => Lanes::Fixed(spec.config.num_lanes() as u32),
                false => Lanes::PerReplica,
            };
            let params = encoder_specs(&spec.config, family.as_ref())?;
            // On actors of their own encoders come and go; those in the foundation's actors are of its gang.
            let elastic = !colocated && pools.encoder.tensor_parallel == 1 && pools.encoder.zero == 0;
            let (store, rank) = (spec.rendezvous.join("encoder"), spec.me.index as usize);
            let group = match elastic {
                true => ProcessGroup::single(),
                false => ProcessGroup::gloo(&store, "encoder", rank, num_encoders, COLLECTIVE_TIMEOUT)?,
            };
            let mut pool = build_pool(spec, device, "encoder", params, lanes, Rc::new(group), pools.encoder.zero)?;
            let num_members = num_encoders as u32;
            let membership = elastic.then(|| Membership::new(spec.me.index, num_members, spec.rendezvous.clone()));
            if elastic {
                pool = pool.elastic(rank);
            }
            let model = family.build(pool.params(), policy(encoder_part));
            let budget = spec.config.memory.activation_budget.encoder;
            let key = "memory.activation_budget.encoder";
            let activations = Activations::new(&spec.config.memory, key, budget, device)?;
            let part = EncoderPart::new(spec.me.index, model, pool, membership).with_activations(activations);
            Some(part.with_cache(pools.encoder.cache.bytes()).with_spill(spill(&spec.config)?))
        }
        _ => None,
    };
    let foundation = if spec.me.role == Role::Foundation { Some(build_foundation(spec, device)?) } else { None };
    let first_step = spec.resume.as_ref().map_or(StepId(0), |(_, step)| *step);
    Ok(TorchEngine::new(encoder, foundation, exports, first_step))
}

/// The file that features go to which an encoder's cache has no memory for.
fn spill(config: &RunConfig) -> Result<Option<Spill>, EngineError> {
    let bytes = config.pools.encoder.spill.bytes();
    let folder = &config.run.dir;
    let file = (bytes > 0).then(|| Spill::new(folder, bytes)).transpose();
    file.map_err(|error| format!("pools.encoder.spill: a file in {}: {error}", folder.display()).into())
}

/// This rank's part of the foundation.
fn build_foundation(spec: &EngineSpec, device: tch::Device) -> Result<FoundationPart, EngineError> {
    let (family, pool, part) =
        (&spec.families.foundation, &spec.config.pools.foundation, &spec.config.model.foundation);
    let (store, rank, layout) = (spec.rendezvous.join("foundation"), spec.me.index as usize, pool.layout());
    if layout.tp * layout.ep > 1 && pool.zero > 0 {
        return Err(format!("pools.foundation.zero: {layout} splits parameters itself; set zero to 0").into());
    }
    let shares = family.check_context(layout.cp, pool.context_attention);
    shares.map_err(|found| format!("pools.foundation.context_parallel: {found}"))?;
    if layout.cp > 1 && pool.chunk_tokens > 0 {
        return Err("pools.foundation: rows are cut by context_parallel or by chunk_tokens, not by both".into());
    }
    let mesh = Rc::new(Mesh::join(&store, "foundation", layout, rank, COLLECTIVE_TIMEOUT)?);
    let division = Division::of(&mesh, pool.sequence_parallel);
    let family = match division.is_whole() {
        true => family.clone(),
        false => family.divided(&division).map_err(|found| format!("pools.foundation: {found}"))?,
    };
    let pipeline = Pipeline { ranks: mesh.layout().pp, virtual_stages: pool.virtual_stages };
    let stages = stages(&spec.config, family.as_ref())?;
    let own: Vec<&Stage> = pipeline.stages_of(mesh.place().pp).map(|stage| &stages[stage]).collect();
    let params = own.iter().flat_map(|stage| family.stage_specs(stage)).collect();
    let params = trained(params, |_| ("model.foundation", part))?;
    let of_pool = build_pool(spec, device, "foundation", params, Lanes::PerReplica, mesh.data.clone(), pool.zero)?;
    let mut of_pool = of_pool.with_stages(mesh.pp.clone(), &family.shared_by_stages());
    if !division.is_whole() {
        of_pool = of_pool.split_among(mesh.clone());
    }
    let build = |stage: &&Stage| family.build_stage(stage, of_pool.params(), policy(part));
    let models = own.iter().map(build).collect();
    let encoder_trained = match &spec.families.encoder {
        Some(family) => is_trained(&encoder_specs(&spec.config, family.as_ref())?),
        None => false,
    };
    let replica = mesh.place().dp as u32;
    let stages = Stages::new(mesh, pipeline, models, pool.chunk_tokens).with_context(pool.context_attention);
    let budget = spec.config.memory.activation_budget.foundation;
    let key = "memory.activation_budget.foundation";
    let activations = Activations::new(&spec.config.memory, key, budget, device)?;
    Ok(FoundationPart::on(replica, stages, of_pool, encoder_trained).with_activations(activations))
}

/// The foundation's stages in order; one without a pipeline.
fn stages(config: &RunConfig, family: &dyn FoundationFamily) -> Result<Vec<Stage>, EngineError> {
    let pool = &config.pools.foundation;
    let pipeline = Pipeline { ranks: pool.pipeline_parallel, virtual_stages: pool.virtual_stages };
    let num_layers = family.num_layers();
    if pipeline.stages() == 1 {
        return Ok(vec![Stage::whole(num_layers)]);
    }
    let error = |what: String| format!("pools.foundation.pipeline_parallel: {what}");
    let too_many = || match num_layers {
        0 => error("this model cannot be cut into stages; set it to 1".into()),
        _ => error(format!("{} stages of {num_layers} layers; take fewer", pipeline.stages())),
    };
    let stages = Stage::all(pipeline.layers(num_layers).ok_or_else(too_many)?);
    stages.iter().try_for_each(|stage| family.check_stage(stage)).map_err(|found| error(found.to_string()))?;
    Ok(stages)
}

/// The encoder pool's parameters: the tower is one part of the config, the projector another.
fn encoder_specs(config: &RunConfig, family: &dyn EncoderFamily) -> Result<Vec<ParamSpec>, EngineError> {
    let part_of = |name: &str| match family.is_projector(name) {
        true => ("model.image_projector", &config.model.image_projector),
        false => ("model.image_encoder", &config.model.image_encoder),
    };
    Ok(trained(family.specs(), part_of)?)
}

fn is_trained(specs: &[ParamSpec]) -> bool {
    specs.iter().any(|spec| spec.role == nn::Role::Trained)
}

fn build_pool(
    spec: &EngineSpec,
    device: tch::Device,
    name: &str,
    params: Vec<ParamSpec>,
    lanes: Lanes,
    group: Rc<ProcessGroup>,
    zero: usize,
) -> Result<Pool, EngineError> {
    let is_trained = is_trained(&params);
    let train = &spec.config.train;
    let sharding = Sharding { shared: Shared::of_level(zero), rank: group.rank(), world: group.world() };
    let params = Rc::new(ParamStore::shared_out(params, kind(train.precision), device, sharding));
    // The base of adapters is no part of a checkpoint.
    let from_base = has_adapter(&params) || spec.config.saves_adapters_only();
    if spec.resume.is_none() || from_base {
        initialize(&spec.config, &params)?;
    }
    if spec.resume.is_none() {
        continue_adapter(&spec.config, name, &params)?;
    }
    let optimizer = AdamWConfig {
        betas: train.optimizer.betas,
        eps: train.optimizer.eps,
        weight_decay: train.optimizer.weight_decay,
    };
    let mut pool = Pool::new(params, group, lanes, is_trained.then_some(optimizer))?;
    if let Some((folder, _)) = &spec.resume {
        load_state(&mut pool, folder, name, !from_base)?;
    }
    Ok(pool)
}

fn initialize(config: &RunConfig, params: &ParamStore) -> Result<(), EngineError> {
    let model = &config.model;
    let names = || params.ids().flat_map(|id| &params.spec(id).pieces).map(|piece| piece.name.as_str());
    let mut origin = match (model.weights, &model.load) {
        (Weights::Load, Some(folder)) => Origin::whole(Checkpoint::open(folder.as_path())?),
        _ => Origin::default(),
    };
    for (key, part) in model.parts() {
        let Some(folder) = &part.load else { continue };
        let prefix = match model.is_foundation_alone() {
            true => String::new(),
            false => format!("{}.", key.trim_start_matches("model.")),
        };
        if names().any(|name| name.starts_with(&prefix)) {
            origin = origin.with_part(&prefix, Checkpoint::open(folder.as_path())?, names());
        }
    }
    if let Some(name) = names().find(|name| model.weights == Weights::Load && !origin.covers(name)) {
        let what = "set model.load, or the `load` of the part that it is of, or model.weights=random";
        return Err(format!("there is no folder to load {name} from: {what}").into());
    }
    // What is not loaded is new: adapters, and parts of random weights.
    params.init_where(config.run.seed, |spec| spec.pieces.is_empty() || !origin.covers(&spec.name));
    let options = LoadOptions { resize_embeddings: model.resize_embeddings, ..LoadOptions::default() };
    Ok(load_weights_from(params, &origin, &options)?)
}

/// Fills a pool's adapters from the folder that `lora.adapter` names.
fn continue_adapter(config: &RunConfig, pool: &str, params: &ParamStore) -> Result<(), EngineError> {
    let Some(lora) = pool_lora(config, pool) else { return Ok(()) };
    let Some(folder) = &lora.adapter else { return Ok(()) };
    let (found, here) = (read_adapter_config(folder.as_path())?, lora_config(lora));
    if (found.r, found.scale()) != (here.r, here.scale()) {
        let what =
            format!("r {} and scale {}, and the run's lora r {} and {}", found.r, found.scale(), here.r, here.scale());
        return Err(format!("the adapter in {folder} has {what}: set r and alpha to its own").into());
    }
    Ok(load_adapter(params, folder.as_path())?)
}

/// The adapters of a pool; the parts of one pool share them.
fn pool_lora<'a>(config: &'a RunConfig, pool: &str) -> Option<&'a Lora> {
    let model = &config.model;
    match pool {
        "foundation" => model.foundation.lora.as_ref(),
        _ => model.image_encoder.lora.as_ref().or(model.image_projector.lora.as_ref()),
    }
}

/// What the pools of this run write into checkpoints.
fn exports(spec: &EngineSpec) -> Result<Exports, EngineError> {
    let (config, families) = (&spec.config, &spec.families);
    let encoder = families.encoder.as_ref().map(|family| encoder_specs(config, family.as_ref())).transpose()?;
    let foundation = trained(families.foundation.specs(), |_| ("model.foundation", &config.model.foundation))?;
    if !config.saves_adapters_only() {
        let num_files = |specs: &[ParamSpec]| num_files(specs, config.train.precision);
        let layout = config.pools.foundation.layout();
        let stages = stages(config, families.foundation.as_ref())?;
        let pipeline = Pipeline { ranks: layout.pp, virtual_stages: config.pools.foundation.virtual_stages };
        let of_rank = |rank: usize| {
            let specs = pipeline.stages_of(rank).flat_map(|stage| families.foundation.stage_specs(&stages[stage]));
            let own: Vec<ParamSpec> = specs.filter(|spec| !spec.is_copy).collect();
            Ok(num_files(&trained(own, |_| ("model.foundation", &config.model.foundation))?))
        };
        let of_ranks = (0..layout.pp).map(of_rank).collect::<Result<Vec<usize>, EngineError>>()?;
        let part = layout.place(spec.me.index as usize % layout.ranks()).pp;
        return Ok(Exports::weights(encoder.as_deref().map_or(0, num_files), &of_ranks, part));
    }
    let itself = |spec: &&ParamSpec| spec.role == nn::Role::Trained && !spec.pieces.is_empty();
    if let Some(found) = encoder.iter().flatten().chain(&foundation).find(itself) {
        let fix = "freeze its part, give it a lora, or set checkpoint.merge_lora=true to save whole models";
        return Err(
            format!("{} is trained itself, which a checkpoint of adapters does not hold: {fix}", found.name).into()
        );
    }
    if config.pools.foundation.pipeline_parallel > 1 {
        let fix = "set checkpoint.merge_lora=true to save whole models, or pools.foundation.pipeline_parallel=1";
        return Err(format!("stages of a pipeline do not save adapters apart: {fix}").into());
    }
    let base_model = config.model.load.as_ref().or(config.model.foundation.load.as_ref()).map(ToString::to_string);
    let export = |pool, prefix| {
        let file = |lora| AdapterFile { config: lora_config(lora), base_model: base_model.clone(), prefix };
        Export::Adapter(pool_lora(config, pool).map(file))
    };
    let prefix = if config.model.foundation.lora.is_some() { ENCODER_PREFIX } else { "" };
    Ok(Exports { encoder: export("encoder", prefix), foundation: export("foundation", "") })
}

/// The type of parameters.
fn kind(precision: Precision) -> Kind {
    match precision {
        Precision::Float32 => Kind::Float,
        Precision::Bf16 => Kind::BFloat16,
    }
}

/// Files that a pool with these parameters writes.
fn num_files(specs: &[ParamSpec], precision: Precision) -> usize {
    let kind = |role| if role == nn::Role::Buffer { Kind::Float } else { kind(precision) };
    let pieces = specs.iter().flat_map(|spec| spec.pieces.iter().map(|piece| (piece, kind(spec.role))));
    num_shards(pieces, MAX_SHARD_SIZE)
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
    match *device {
        Device::Cpu => Ok(tch::Device::Cpu),
        Device::Cuda(index) => {
            load_cuda()?;
            let (index, count) = (index.unwrap_or(0), tch::Cuda::device_count());
            if i64::from(index) >= count {
                return Err(format!("device: cuda:{index} was asked for and there are {count} CUDA devices").into());
            }
            Ok(tch::Device::Cuda(index as usize))
        }
    }
}
