//! An actor's place in a run, and what every engine is built from: its device, its thread, its pool with weights.

use super::optimizer::optimizer;
use super::pool_specs::kind;
use super::samples::SampleSpec;
use super::weights::initialize;
use crate::comm::ProcessGroup;
use crate::device::{enter_gpu, load_cuda, set_intra_op_threads};
use crate::model::{ModelConfig, REFERENCE_PREFIX, Towers};
use crate::native::{grad, interrupt_by, is_dry_run, set_products};
use crate::parallel::FrozenWeights;
use crate::params;
use crate::params::{ParamSpec, ParamStore, Sharding};
use crate::tape::{Policy, Transfers};
use crate::train::hf::{Checkpoint, LoadOptions, Origin, is_adapter, load_weights_from};
use crate::train::{AdapterFolder, Lanes, TrainState, has_adapter, load_adapter, load_state};
use loongforge_core::config::{Device, EncoderPool, Part, Placement, Recompute, RunConfig};
use loongforge_core::engine::{EngineError, urgent_commands};
use loongforge_core::message::{ActorId, PoolName, Role, StepId, TowerPart};
use loongforge_core::schedule::PoolSizes;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The inputs from which an actor's engine is made.
pub struct EngineSpec {
    pub config: RunConfig,
    pub model: ModelConfig,
    pub me: ActorId,
    /// Folder in which the pools' replicas find each other, made for this run.
    pub rendezvous: PathBuf,
    /// The rank of this process on its host, where a launcher says so: the GPU that it takes.
    pub local_rank: Option<u32>,
    /// The place of this process in its pool, where it was started for one. An encoder that replaces another one has its place, and
    /// with it its GPU.
    pub place: Option<u32>,
    /// Checkpoint to go on from, and the step that comes next.
    pub resume: Option<(PathBuf, StepId)>,
    /// The checkpoint that an encoder without `resume` takes those weights from that no other encoder sends it: all where none is trained,
    /// and frozen ones that lie on the host. `None`: those that a run begins with.
    pub frozen_from: Option<PathBuf>,
    /// The actor's pool has no encoders: it reads features from the pool's `cache_dir`.
    pub reads: bool,
    /// Tokens that end what is generated in an evaluation.
    pub stop_token_ids: Vec<i64>,
    /// The settings of the pictures and clips that are made of prompts while the run goes on.
    pub samples: Option<SampleSpec>,
}

/// Opens the actor's device, and has this thread compute as the actor does.
pub(super) fn settle_thread(spec: &EngineSpec, own: Option<&OwnPool<'_>>) -> Result<tch::Device, EngineError> {
    let number = || {
        let pools = PoolSizes::new(&spec.config, spec.model.towers.set());
        number_of(&spec.config, &pools, spec.me, spec.place)
    };
    let number = spec.local_rank.map_or_else(number, |rank| rank as usize);
    let device = match is_dry_run() || spec.reads {
        true => tch::Device::Cpu,
        false => open_device_of(&device_of(&spec.config, spec.me, own), number)?,
    };
    if !is_dry_run() {
        set_intra_op_threads(spec.config.threads_for(spec.me.pool));
        urgent_commands().into_iter().for_each(interrupt_by);
    }
    if device == tch::Device::Cpu {
        set_products(spec.config.run.products)?;
    }
    Ok(device)
}

/// Returns the device that the config names for the actor `me`: its pool's, or the run's. Encoders in a foundation's actors are where
/// those are.
pub(super) fn device_of(config: &RunConfig, me: ActorId, own: Option<&OwnPool<'_>>) -> Device {
    let own = own.filter(|own| own.name == me.pool);
    own.and_then(|own| own.pool.device).unwrap_or(config.device)
}

/// The encoder pool that an actor is of, or has in itself.
pub(super) struct OwnPool<'a> {
    pub name: PoolName,
    pub pool: &'a EncoderPool,
    /// The towers that it holds.
    pub towers: Towers,
}

/// Returns the pool of encoders that the actor is of, or has beside its foundation; `None` where it has none, and where the pool holds no
/// tower of the model.
pub(super) fn own_pool(spec: &EngineSpec) -> Option<OwnPool<'_>> {
    let pools = &spec.config.pools;
    let all = &spec.model.towers;
    let name = if pools.placement == Placement::Colocated { PoolName::ENCODER } else { spec.me.pool };
    let (name, pool, set) = pools.encoders(all.set()).into_iter().find(|(other, ..)| *other == name)?;
    Some(OwnPool { name, pool, towers: all.only(set) })
}

/// Returns the actor's number among those that use GPUs: they take one after the other, first the foundation's. `pools`: all of the run;
/// `place`: as in [`EngineSpec`].
fn number_of(config: &RunConfig, pools: &PoolSizes, me: ActorId, place: Option<u32>) -> usize {
    let on_gpu = |name| match config.pools.encoder_pool(name) {
        Some(pool) => !pool.reads() && pool.device.unwrap_or(config.device) != Device::Cpu,
        None => config.device != Device::Cpu,
    };
    let before = pools.foundations.iter().chain(&pools.encoders).take_while(|pool| pool.name != me.pool);
    let before = before.filter(|pool| on_gpu(pool.name)).map(|pool| pool.actors).sum::<u32>();
    (before + place.unwrap_or(me.index)) as usize
}

/// Returns whether any parameter is trained.
pub(super) fn is_trained(specs: &[ParamSpec]) -> bool {
    specs.iter().any(|spec| spec.role == params::Role::Trained)
}

/// Returns the training state of a pool with the weights that a run begins with; what is trained apart from them is for [`settle`].
pub(super) fn build_state(
    spec: &EngineSpec,
    device: tch::Device,
    params: Vec<ParamSpec>,
    lanes: Lanes,
    group: Rc<ProcessGroup>,
    sharding: Sharding,
) -> Result<TrainState, EngineError> {
    let is_trained = is_trained(&params);
    let optimizer = optimizer(&spec.config);
    let params = new_params(&spec.config, device, params, optimizer.method.sharding(sharding))?;
    // In a dry run parameters have no values.
    if !is_dry_run() && (spec.resume.is_none() || lacks_base(spec, &params) || has_rounded(&params)) {
        initialize(&spec.config, &params)?;
    }
    Ok(TrainState::with(params, group, lanes, is_trained.then_some(optimizer))?.with_ema(spec.config.train.ema)?)
}

/// Returns the state of parameters that no run changes, with the weights that a run begins with.
pub(super) fn frozen_state(
    config: &RunConfig,
    device: tch::Device,
    params: Vec<ParamSpec>,
    group: Rc<ProcessGroup>,
    sharding: Sharding,
) -> Result<TrainState, EngineError> {
    let params = new_params(config, device, params, sharding)?;
    if !is_dry_run() {
        initialize(config, &params)?;
    }
    Ok(TrainState::with(params, group, Lanes::PerReplica, None)?)
}

/// Returns parameters without values, of the run's precision; frozen ones are where the run holds them.
fn new_params(
    config: &RunConfig,
    device: tch::Device,
    specs: Vec<ParamSpec>,
    sharding: Sharding,
) -> Result<Rc<ParamStore>, EngineError> {
    let params = Rc::new(ParamStore::shared_out(specs, kind(config.train.precision), device, sharding));
    params.set_run_seed(config.run.seed);
    let is_on_host = params.frozen_units().iter().any(|unit| unit.held().on_host);
    let throttle = config.memory.throttle.map(|rate| rate.bytes() as f64);
    let transfers = is_on_host.then(|| Transfers::new(device, throttle).map(Rc::new)).transpose()?;
    FrozenWeights::attach(&params, transfers);
    Ok(params)
}

/// Returns whether the checkpoint that is resumed lacks weights of the pool: it has adapters without their base, whatever the run
/// saves from now on, or added to it, or they are those of a reference model.
fn lacks_base(spec: &EngineSpec, params: &ParamStore) -> bool {
    let is_reference = params.names().any(|name| name.starts_with(REFERENCE_PREFIX));
    let of_adapters = spec.resume.as_ref().is_some_and(|(folder, _)| is_adapter(folder));
    has_adapter(params) || of_adapters || is_reference
}

/// Returns whether some weights are rounded: they are read from where they come from, since a checkpoint has what was computed
/// with, in another type.
fn has_rounded(params: &ParamStore) -> bool {
    params.frozen_units().iter().any(|unit| unit.held().rounding.is_some())
}

/// Fills the adapters of pool `name`, or all that a checkpoint has of it.
pub(super) fn settle(spec: &EngineSpec, name: &str, mut state: TrainState) -> Result<TrainState, EngineError> {
    if is_dry_run() {
        return Ok(state);
    }
    let from_base = lacks_base(spec, state.params());
    if spec.resume.is_none() || from_base {
        state.init_magnitudes()?;
    }
    match &spec.resume {
        None => {
            take_frozen(&state, spec.frozen_from.as_deref().filter(|_| !from_base))?;
            continue_adapter(spec, name, state.params())?;
            // The optimizer, which was made before, has the values that adapters and norms had until now.
            if spec.config.model.parts().iter().any(|(_, part)| part.lora.is_some()) {
                state.refresh_master();
            }
        }
        Some((folder, _)) => load_state(&mut state, folder, name, !from_base)?,
    }
    state.refresh_norms()?;
    Ok(state)
}

/// Fills a pool from the checkpoint in `folder`, where it has weights that no member of the pool sends to one that joins: those are all of
/// a pool that is not trained, and else the frozen ones on the host. Rounded ones never come from a checkpoint.
fn take_frozen(state: &TrainState, folder: Option<&Path>) -> Result<(), EngineError> {
    let params = state.params();
    let is_sent = state.is_trained() && params.frozen_units().iter().all(|unit| unit.held().rounding.is_some());
    let Some(folder) = folder.filter(|folder| !is_sent && !is_adapter(folder)) else { return Ok(()) };
    let options = LoadOptions { keep_rounded: true, ..LoadOptions::default() };
    Ok(load_weights_from(params, &Origin::whole(Checkpoint::open(folder)?), &options)?)
}

/// Fills a pool's adapters from the folders that `lora.adapter` names, a part at a time.
fn continue_adapter(spec: &EngineSpec, pool: &str, params: &ParamStore) -> Result<(), EngineError> {
    let (model, tree) = (&spec.config.model, &spec.model.tree);
    let folder = |part: &Part| part.lora.as_ref().and_then(|lora| lora.adapter.clone());
    let load = |part: &Part, is_own: &dyn Fn(&str) -> bool| -> Result<(), EngineError> {
        let Some(folder) = folder(part) else { return Ok(()) };
        Ok(load_adapter(params, &AdapterFolder::open(folder.as_path())?, tree, is_own)?)
    };
    if spec.me.role == Role::Foundation && pool == spec.me.pool.as_str() {
        return load(&model.foundation, &|_| true);
    }
    let towers = own_pool(spec).map(|own| own.towers).unwrap_or_default();
    towers.iter().flat_map(|it| TowerPart::ALL.map(|part| (it.tower, part))).try_for_each(|(tower, part)| {
        load(model.tower_part(tower, part).1, &|name| towers.part_of(name) == Some((tower, part)))
    })
}

/// Returns whether the activations of a part's segments are kept or computed again.
pub(super) fn policy(part: &Part) -> Policy {
    match part.recompute {
        Recompute::None => Policy::Keep,
        Recompute::All => Policy::Recompute,
    }
}

/// Returns the device of the configuration; loads the CUDA libraries when they are asked for.
///
/// # Errors
/// There is no such device on this machine.
pub fn open_device(device: &Device) -> Result<tch::Device, EngineError> {
    open_device_of(device, 0)
}

/// Works like [`open_device`], of the process that is `number` on its host: of `cuda` without a number each takes the
/// next GPU, in turns.
///
/// # Errors
/// Fails as [`open_device`] does.
pub fn open_device_of(device: &Device, number: usize) -> Result<tch::Device, EngineError> {
    let found = find_device(device, number)?;
    if let tch::Device::Cuda(index) = found {
        enter_gpu(index);
        wake_autograd(found)?;
    }
    Ok(found)
}

/// Returns what [`open_device_of`] opens. Memory of a GPU is taken by a process that opens it, which one that only asks keeps as
/// long as it lives.
///
/// # Errors
/// There is no such device on this machine.
pub fn find_device(device: &Device, number: usize) -> Result<tch::Device, EngineError> {
    // Where nobody has settled it before.
    match crate::device::settle(*device).0 {
        Device::Cpu | Device::Auto => Ok(tch::Device::Cpu),
        Device::Cuda(index) => {
            load_cuda()?;
            let count = tch::Cuda::device_count();
            let index = index.map_or(number % count.max(1) as usize, |index| index as usize);
            if index as i64 >= count {
                return Err(format!("device: cuda:{index} was asked for, but there are {count} CUDA devices").into());
            }
            Ok(tch::Device::Cuda(index))
        }
    }
}

/// Has autograd's thread for a GPU launch a kernel, without which a product as its first work warns that there is no context.
///
/// # Errors
/// The GPU cannot be used.
fn wake_autograd(device: tch::Device) -> Result<(), EngineError> {
    let failed = |error: tch::TchError| EngineError::from(format!("{device:?}: {error}"));
    let x = tch::Tensor::f_ones([1], (tch::Kind::Float, device)).map_err(failed)?.set_requires_grad(true);
    let [y, dy] = [x.f_mul_scalar(2.0).map_err(failed)?, x.f_ones_like().map_err(failed)?];
    grad(&[&y], &[&dy], &[&x])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{Held, Init};
    use crate::train::hf::Shards;
    use crate::train::{AdamWConfig, save_weights};
    use loongforge_core::config::load_text;
    use loongforge_core::schedule::PoolSize;
    use tch::Kind;

    fn config() -> RunConfig {
        let folder = tempfile::tempdir().unwrap();
        for name in ["config.json", "tokenizer.json", "d.jsonl"] {
            std::fs::write(folder.path().join(name), "{}").unwrap();
        }
        let at = folder.path().display();
        let text = format!(
            "run: {{ name: t }}\nmodel: {{ load: {at}, weights: random }}\ndata:\n  train: [{{ path: {at}/d.jsonl }}]\n\
             train:\n  steps: 10\n  global_batch_size: 4\n  lr: 1e-05\n"
        );
        load_text(&text).unwrap_or_else(|report| panic!("{report}")).config
    }

    #[test]
    fn actors_take_one_gpu_after_the_other_and_a_replacement_that_of_who_died() {
        let mut config = config();
        config.device = Device::Cuda(None);
        let audio: PoolName = "audio".parse().unwrap();
        let encoders = [audio, PoolName::ENCODER].map(|name| PoolSize { name, actors: 2 });
        let pools = PoolSizes { encoders: encoders.to_vec(), ..PoolSizes::of_roles(1, 0, 2) };
        config.pools.named.insert(audio, config.pools.encoder.clone());
        let numbers = |config: &RunConfig| {
            let actors = pools.foundation_actors().chain(pools.encoder_actors());
            actors.map(|me| number_of(config, &pools, me, None)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(&config), [0, 1, 2, 3, 4, 5]);
        assert_eq!(number_of(&config, &pools, ActorId::encoder(7), Some(1)), 5);
        // Actors on the CPU leave no GPU out.
        config.pools.named.insert(audio, EncoderPool { device: Some(Device::Cpu), ..config.pools.encoder.clone() });
        assert_eq!(numbers(&config)[4..], [2, 3]);
    }

    #[test]
    fn a_device_of_encoders_is_not_that_of_a_foundation_which_has_them_in_its_actors() {
        let mut config = config();
        config.device = Device::Cuda(None);
        config.pools.encoder.device = Some(Device::Cpu);
        let own = OwnPool { name: PoolName::ENCODER, pool: &config.pools.encoder, towers: Towers::default() };
        assert_eq!(device_of(&config, ActorId::encoder(0), Some(&own)), Device::Cpu);
        assert_eq!(device_of(&config, ActorId::foundation(0), Some(&own)), Device::Cuda(None));
        assert_eq!(device_of(&config, ActorId::foundation(0), None), Device::Cuda(None));
    }

    #[test]
    fn who_joins_takes_from_a_checkpoint_the_weights_that_no_member_sends() {
        let folder = tempfile::tempdir().unwrap();
        let store = |on_host: bool| {
            let tower = ParamSpec::new("tower.weight", &[4, 3], Init::Normal(0.5)).frozen();
            let tower = ParamSpec { held: Held { on_host, ..tower.held }, ..tower };
            let specs = vec![tower, ParamSpec::new("norm", &[3], Init::Ones)];
            let params = Rc::new(ParamStore::new(specs, Kind::Float, tch::Device::Cpu));
            FrozenWeights::attach(&params, Some(Rc::new(Transfers::new(tch::Device::Cpu, None).unwrap())));
            params
        };
        let saved = store(false);
        saved.init_random(1);
        save_weights(&saved, folder.path(), &Shards::single()).unwrap();
        let value = |params: &ParamStore| params.value(params.id("tower.weight"));
        for (is_trained, on_host, is_read) in [(false, false, true), (true, true, true), (true, false, false)] {
            let params = store(on_host);
            let adamw = AdamWConfig { betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1 };
            let (group, adamw) = (ProcessGroup::single(), is_trained.then_some(adamw));
            let state = TrainState::new(params.clone(), group, Lanes::PerReplica, adamw).unwrap();
            take_frozen(&state, None).unwrap();
            assert!(value(&params) != value(&saved));
            take_frozen(&state, Some(folder.path())).unwrap();
            assert_eq!(value(&params) == value(&saved), is_read, "trained {is_trained}, on the host {on_host}");
        }
    }
}
