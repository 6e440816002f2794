//! The memory that an actor will take, counted in a dry run of its own engine: the same code builds it, splits it among
//! ranks and goes through the same steps, with nothing computed, nothing loaded and nobody to talk to.

mod inputs;

use super::actor_spec::EngineSpec;
use super::build::build_engine;
use super::pool_specs::kind;
use super::torch_engine::TorchEngine;
use crate::device::{load_cuda, settle};
use crate::model::{ModelConfig, Towers};
use crate::native::DryRun;
use loongforge_core::config::{Device, Layout, Placement, RunConfig};
use loongforge_core::engine::{Engine, EngineError, Ports, Progress};
use loongforge_core::message::{ActorId, Command, Commit, Event, MemoryReport, PoolName, StepPlan};
use loongforge_core::schedule::PoolSizes;
use loongforge_core::transport::{Edge, Parcel, ParcelKind, Refused, TensorMeta};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use tch::Kind;

/// Events of one call of an engine.
const EVENTS: usize = 4096;

/// Returns the bytes that the tensors of actor `me` take at most in the steps `plans`, the first ones of a run.
///
/// The dry run assumes what the plans do not say: experts are chosen equally often, every unit of a step is encoded before the
/// first gradient comes back, and what others made is counted by them.
///
/// # Errors
/// Fails as [`build_engine`] does where the model cannot be split as the configuration says, and where a budget is too small.
pub fn memory_of(
    config: &RunConfig,
    model: &ModelConfig,
    me: ActorId,
    plans: &[Arc<StepPlan>],
) -> Result<MemoryReport, EngineError> {
    // Autograd starts a thread for every GPU when it is first used: CUDA, which a run may want afterwards, must be there by then.
    let of_pools = config.pools.encoders(model.towers.set()).into_iter().filter_map(|(_, pool, _)| pool.device);
    if of_pools.chain([config.device]).any(|device| matches!(settle(device).0, Device::Cuda(_))) {
        let _ = load_cuda();
    }
    let _dry = DryRun::begin();
    let spec = EngineSpec {
        reads: false,
        config: config.clone(),
        model: model.clone(),
        me,
        rendezvous: PathBuf::new(),
        local_rank: None,
        place: None,
        stop_token_ids: Vec::new(),
        samples: None,
        resume: None,
        frozen_from: None,
    };
    let engine = build_engine(&spec)?;
    let pools = &config.pools;
    let (events, told) = flume::bounded(EVENTS);
    let (sent, outbox) = flume::bounded(EVENTS);
    let sizes = PoolSizes::new(config, model.towers.set());
    let peers = sizes.compute_actors();
    let edges = peers.map(|peer| (peer, Box::new(Sink { sent: sent.clone() }) as Box<dyn Edge>)).collect();
    let course = Course {
        engine,
        ports: Ports::new(me, events, edges),
        told,
        outbox,
        towers: model.towers.clone(),
        restarts: model.foundation.as_encoder_decoder().is_some(),
        encoder_ranks: pools.encoder_ranks(),
        layout: config.foundation_pool(me.pool).layout(),
        colocated: pools.placement == Placement::Colocated,
        kind: kind(config.train.precision),
        me,
    };
    course.run(plans)
}

/// A sink that drops what an engine sends, but for its shapes.
struct Sink {
    sent: flume::Sender<(ParcelKind, Vec<TensorMeta>)>,
}

impl Edge for Sink {
    fn try_send(&mut self, parcel: Parcel) -> Result<(), Refused> {
        let shapes = parcel.tensors.iter().map(|tensor| tensor.meta()).collect();
        let _ = self.sent.send((parcel.header.kind, shapes));
        Ok(())
    }

    fn load(&mut self) -> (usize, usize) {
        (0, usize::MAX)
    }
}

/// An engine on its way through its steps.
struct Course {
    engine: TorchEngine,
    ports: Ports,
    told: flume::Receiver<Event>,
    outbox: flume::Receiver<(ParcelKind, Vec<TensorMeta>)>,
    towers: Towers,
    /// Positions restart where an answer begins.
    restarts: bool,
    encoder_ranks: BTreeMap<PoolName, u32>,
    layout: Layout,
    colocated: bool,
    /// The type of features and their gradients.
    kind: Kind,
    me: ActorId,
}

impl Course {
    fn run(mut self, plans: &[Arc<StepPlan>]) -> Result<MemoryReport, EngineError> {
        plans.iter().try_for_each(|plan| self.step(plan))?;
        Ok(self.engine.memory())
    }

    fn step(&mut self, plan: &Arc<StepPlan>) -> Result<(), EngineError> {
        self.engine.command(Command::Plan(plan.clone()), &mut self.ports)?;
        self.receive(plan)?;
        let step = plan.step;
        loop {
            let progress = self.engine.work(&mut self.ports)?;
            while let Some(parcel) = self.ports.take_own() {
                self.engine.arrive(self.me, parcel, &mut self.ports)?;
            }
            let returned = self.return_gradients(plan)?;
            for event in self.told.drain() {
                let ended = match event {
                    Event::Reduced(_) => {
                        let commit = Commit { step, clip_scale: 1.0, learning_rate: plan.learning_rate };
                        Command::Commit(commit)
                    }
                    Event::Finished { epoch, .. } => {
                        self.engine.command(Command::Reduce { step, epoch }, &mut self.ports)?;
                        continue;
                    }
                    _ => continue,
                };
                self.engine.command(ended, &mut self.ports)?;
                self.told.drain().for_each(drop);
                return Ok(());
            }
            if progress == Progress::Idle && !returned {
                return Err(format!("{} waits for something in step {step}", self.me).into());
            }
        }
    }
}
