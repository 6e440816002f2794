//! One process of a fixture's run: what it holds of the two pools, and its steps.

use super::super::buffer::TorchBuffer;
use super::super::encoder::EncoderWorker;
use super::super::encoder::TowerModels;
use super::super::foundation::FoundationWorker;
use super::super::pack_work::input_of;
use super::super::share::{EncoderShare, FoundationShare};
use super::PoolLayouts;
use super::layout::EncoderPool;
use super::plan::{Batch, DATA};
use crate::comm::{Mesh, ProcessGroup, Started};
use crate::engine::pack_work::EncoderPeers;
use crate::model::TreeNames;
use crate::model::{FeatureInput, fixture_tensors};
use crate::params::{ParamId, ParamSpec, ParamStore, Sharding};
use crate::tape::Policy;
use crate::train::parity::{Fixture, Steps, reference_parts};
use crate::train::{AdapterFolder, Lanes, TrainState, adapted, gather_whole, load_adapter, load_weights};
use loongforge_core::engine::{EngineError, Ports, Progress};
use loongforge_core::message::{ActorId, PoolName, Replica, Role, StepPlan, TowerSet, Unit, Version};
use loongforge_core::transport::{Buffer, Edge, Header, Parcel, ParcelKind, Refused};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tch::{Device, Kind, Tensor};

/// The most tensors of a parcel.
const MAX_TENSORS: usize = 64;

/// Runs the steps of the fixture in `folder` on one of the ranks of `layouts`, all of which call this with the same new folder `meeting`.
/// Only the first rank gets the results.
///
/// # Errors
/// The fixture cannot be read, its model not be split so, or a rank is gone.
pub fn on_rank(
    folder: &Path,
    meeting: &Path,
    layouts: &PoolLayouts,
    rank: usize,
    timeout: Duration,
) -> Result<Option<Steps>, EngineError> {
    let fixture = Fixture::read(folder)?;
    let towers = fixture.config.towers.set();
    layouts.check_towers(towers)?;
    let world = layouts.ranks(towers);
    if rank >= world {
        return Ok(None);
    }
    let store = meeting.join("store");
    let join = |name: &str, layout, rank| Mesh::join(&store, name, layout, rank, timeout).map(Rc::new);
    let me = Ranks::new(layouts, towers, false).actors[rank];
    let meshes = match layouts.encoders(towers).into_iter().find(|pool| pool.name == me.pool) {
        None => (Some(join("foundation", layouts.foundation, rank)?), None),
        Some(pool) => {
            let mesh = join(pool.name.as_str(), pool.layout.layout, me.index as usize)?;
            (None, Some((pool, mesh)))
        }
    };
    let group = ProcessGroup::gloo(&store, "all", rank, world, timeout)?;
    Node::new(folder, fixture, *layouts, layouts.num_packs(), meshes, group)?.run(meeting)
}

/// Returns the same steps, with the packs of `layouts`, in one process.
///
/// # Errors
/// Fails as [`on_rank`] does.
pub fn alone(folder: &Path, meeting: &Path, layouts: &PoolLayouts) -> Result<Steps, EngineError> {
    let fixture = Fixture::read(folder)?;
    let single = || Rc::new(Mesh::single());
    let (group, one) = (ProcessGroup::single(), PoolLayouts::default());
    let encoder = one.encoders(fixture.config.towers.set()).into_iter().next();
    let meshes = (Some(single()), encoder.map(|pool| (pool, single())));
    let steps = Node::new(folder, fixture, one, layouts.num_packs(), meshes, group)?.run(meeting)?;
    Ok(steps.expect("the first process has what was found"))
}

struct Node {
    layouts: PoolLayouts,
    encoders: Vec<EncoderPool>,
    ranks: Ranks,
    group: ProcessGroup,
    batch: Batch,
    foundation: Option<FoundationWorker>,
    encoder: Option<EncoderWorker>,
    ports: Ports,
    outbox: Outbox,
    tree: TreeNames,
    inputs: Vec<FeatureInput>,
    settings: Settings,
}

/// The ranks of the foundation, and of an encoder pool, that a process is one of.
type Meshes = (Option<Rc<Mesh>>, Option<(EncoderPool, Rc<Mesh>)>);

/// The settings of a fixture.
struct Settings {
    learning_rate: f64,
    clip_norm: f64,
    num_steps: u64,
    ill_conditioned: bool,
}

impl Node {
    fn new(
        folder: &Path,
        fixture: Fixture,
        layouts: PoolLayouts,
        num_packs: usize,
        (of_foundation, of_encoder): Meshes,
        group: ProcessGroup,
    ) -> Result<Node, EngineError> {
        let model = &fixture.config;
        let encoders = layouts.encoders(model.towers.set());
        let state = |specs: Vec<ParamSpec>, sharding: Sharding, mesh: &Mesh| -> Result<TrainState, EngineError> {
            let adapter = fixture.has_adapter.then(|| AdapterFolder::open(folder)).transpose()?;
            let specs = match &adapter {
                Some(adapter) => adapted(specs, adapter, &model.tree)?,
                None => specs,
            };
            let params = ParamStore::shared_out(specs, fixture.kind, Device::Cpu, sharding);
            load_weights(&params, folder)?;
            if let Some(adapter) = &adapter {
                load_adapter(&params, adapter, &model.tree, |_| true)?;
            }
            Ok(TrainState::new(Rc::new(params), mesh.data.clone(), Lanes::PerReplica, Some(fixture.adamw))?)
        };
        let foundation = of_foundation.map(|mesh| -> Result<_, EngineError> {
            let share = FoundationShare::new(&model.foundation, mesh.clone(), layouts.splits, PoolName::FOUNDATION)?;
            let state = share.join(state(share.specs(), share.sharding(), &mesh)?);
            let stages = share.stages(state.params(), Policy::Keep);
            let replica = Replica::foundation(mesh.place().dp as u32);
            let peers = |pool: &EncoderPool| EncoderPeers {
                trained: pool.towers,
                frozen: TowerSet::default(),
                ranks: pool.layout.layout.tp as u32,
            };
            let encoders = encoders.iter().map(|pool| (pool.name, peers(pool))).collect();
            Ok(FoundationWorker::new(replica, stages, state, encoders))
        });
        let encoder = of_encoder.map(|(own, mesh)| -> Result<_, EngineError> {
            let share = EncoderShare::new(&model.towers.only(own.towers), mesh.clone(), own.layout.zero)?;
            let state = share.join(state(share.towers.specs(), share.sharding(), &mesh)?);
            let models = TowerModels::new(&share.towers, state.params(), |_| Policy::Keep);
            Ok(EncoderWorker::new(Replica::new(own.name, mesh.place().dp as u32), models, state, None))
        });
        let settings = Settings {
            learning_rate: fixture.learning_rate,
            clip_norm: fixture.clip_norm,
            num_steps: fixture.num_steps as u64,
            ill_conditioned: fixture.decoder().gated_delta().is_some(),
        };
        let (outbox, events) = (Outbox::default(), flume::bounded(1).0);
        let ranks = Ranks::new(&layouts, model.towers.set(), group.world() == 1);
        let edge = |&to: &ActorId| (to, Box::new(Post { to, outbox: outbox.clone() }) as Box<dyn Edge>);
        let edges = ranks.actors.iter().map(edge).collect();
        Ok(Node {
            foundation: foundation.transpose()?,
            encoder: encoder.transpose()?,
            // Nobody: what goes to either pool is posted.
            ports: Ports::new(ActorId::SCHEDULER, events, edges),
            outbox,
            tree: model.tree.clone(),
            inputs: fixture.config.inputs().to_vec(),
            settings,
            ranks,
            encoders,
            layouts,
            group,
            batch: Batch::new(fixture, num_packs),
        })
    }

    /// Runs all steps, and a forward behind them.
    fn run(mut self, meeting: &Path) -> Result<Option<Steps>, EngineError> {
        let ill_conditioned = self.settings.ill_conditioned;
        let mut steps =
            Steps { losses: vec![], grad_norms: vec![], gradients: vec![], weights: vec![], ill_conditioned };
        for step in 0..=self.settings.num_steps {
            let plan = self.batch.plan(step, &self.layouts, self.settings.learning_rate);
            self.compute(&plan)?;
            let squares = self.reduce()?;
            let loss = self.foundation.as_ref().map_or(0.0, FoundationWorker::loss);
            let sums = Tensor::from_slice(&[loss, squares]);
            self.group.all_reduce_sum(&sums)?;
            let (loss, norm) = (sums.double_value(&[0]), sums.double_value(&[1]).sqrt());
            steps.losses.push(loss);
            if step < self.settings.num_steps {
                steps.grad_norms.push(norm);
            }
            if step == 0 {
                steps.gradients = self.whole(meeting, "gradients", |state, id| state.reduced(id))?;
            }
            let clip = (self.settings.clip_norm / (norm + 1e-6)).min(1.0);
            self.finish(clip, step == self.settings.num_steps)?;
        }
        steps.weights = self.whole(meeting, "weights", |state, id| state.gather_state(id, &state.own_values()))?;
        Ok((self.group.rank() == 0).then_some(steps))
    }

    /// All of a step but the sums over ranks.
    fn compute(&mut self, plan: &StepPlan) -> Result<(), EngineError> {
        let version = Version(plan.step.0);
        let mut sent = Vec::new();
        if let Some(worker) = &mut self.encoder {
            worker.plan(plan);
            for unit in &plan.units {
                if worker.has(unit.id) {
                    worker.arrive(DATA, self.batch.pixels(unit))?;
                }
            }
            while !worker.has_encoded() {
                worker.work(version, &mut self.ports)?;
            }
        }
        if let Some(worker) = &mut self.foundation {
            worker.plan(plan);
        }
        self.post(&mut sent)?;
        let (ranks, rank) = (self.ranks.clone(), self.group.rank());
        let mine = |actor: ActorId| ranks.of(actor) == rank;
        if let Some(mut worker) = self.foundation.take() {
            for pack in plan.packs.iter().filter(|pack| mine(plan.leader(pack.replica))) {
                let tokens = self.batch.tokens(pack.id);
                worker.arrive(DATA, tokens, &mut self.ports)?;
            }
            for unit in plan.units.iter().filter(|unit| mine(plan.leader(unit.replica))) {
                let from = self.leader(unit);
                if let Some(features) =
                    self.take(unit, from, Header { kind: ParcelKind::Features(unit.id), version })?
                {
                    worker.arrive(from, features, &mut self.ports)?;
                }
            }
            while worker.work(version, &mut self.ports)? == Progress::Busy {}
            assert!(worker.is_finished(), "all that a foundation waits for is there");
            self.foundation = Some(worker);
        }
        self.post(&mut sent)?;
        if let Some(mut worker) = self.encoder.take() {
            for unit in plan.units.iter().filter(|unit| worker.has(unit.id)).collect::<Vec<_>>() {
                let from = plan.leader(unit.replica);
                if let Some(grads) = self.take(unit, from, Header { kind: ParcelKind::Gradient(unit.id), version })? {
                    worker.arrive(from, grads)?;
                }
            }
            while worker.work(version, &mut self.ports)? == Progress::Busy {}
            assert!(worker.is_finished(0), "all gradients are there");
            self.encoder = Some(worker);
        }
        Ok(sent.into_iter().try_for_each(Started::wait)?)
    }

    /// Returns the actor that sends a unit's features.
    fn leader(&self, unit: &Unit) -> ActorId {
        let pool = self.encoders.iter().find(|pool| pool.name == unit.encoder.pool);
        unit.encoder.leader(Role::Encoder, pool.map_or(1, |pool| pool.layout.layout.tp as u32))
    }

    /// Sums the gradients; this rank's part of the squares of all pools.
    fn reduce(&mut self) -> Result<f64, EngineError> {
        let mut squares = 0.0;
        // The first rank of each pool counts for all of the pool's; one process is the first of each.
        let is_first = self.ranks.alone || self.ranks.actors[self.group.rank()].index == 0;
        if let Some(worker) = &mut self.encoder {
            let found = worker.state.reduce()?;
            squares += if is_first { found } else { 0.0 };
        }
        if let Some(worker) = &mut self.foundation {
            let found = worker.rank.state.reduce()?;
            squares += if is_first { found } else { 0.0 };
            worker.reduce_routing()?;
        }
        Ok(squares)
    }

    /// Applies the step, or forgets it.
    fn finish(&mut self, clip: f64, forget: bool) -> Result<(), EngineError> {
        let learning_rate = self.settings.learning_rate;
        let end = |state: &mut TrainState| match forget {
            true => {
                state.abort();
                Ok(())
            }
            false => state.commit(clip, learning_rate),
        };
        if let Some(worker) = &mut self.encoder {
            end(&mut worker.state)?;
            worker.finish_step();
        }
        if let Some(worker) = &mut self.foundation {
            end(&mut worker.rank.state)?;
            worker.balance();
            worker.finish_step();
        }
        Ok(())
    }

    /// Sends what the parts have sent.
    fn post(&mut self, sent: &mut Vec<Started>) -> Result<(), EngineError> {
        let out: Vec<(ActorId, Parcel)> = std::mem::take(&mut *self.outbox.0.lock().expect("nobody panicked"));
        for (to, parcel) in out {
            let rank = self.ranks.of(to);
            if rank == self.group.rank() {
                // One process is both.
                self.outbox.0.lock().expect("nobody panicked").push((to, parcel));
                continue;
            }
            let kind = parcel.header.kind;
            for (level, buffer) in parcel.tensors.into_iter().enumerate() {
                let tensor = TorchBuffer::into_tensor(buffer, Device::Cpu).contiguous();
                sent.push(self.group.start_send(&tensor, rank, tag(kind, level))?);
            }
        }
        Ok(())
    }

    /// Returns the parcel that `from` has sent of a unit; `None` where nothing is expected here.
    fn take(&self, unit: &Unit, from: ActorId, header: Header) -> Result<Option<Parcel>, EngineError> {
        let rank = self.ranks.of(from);
        if rank == self.group.rank() {
            let mut own = self.outbox.0.lock().expect("nobody panicked");
            let at = own.iter().position(|(_, parcel)| parcel.header.kind == header.kind);
            return Ok(at.map(|at| own.remove(at).1));
        }
        let FeatureInput { width, num_tensors, .. } = self.inputs[input_of(&self.inputs, unit.tower())?];
        let shape = [unit.num_features() as i64, width];
        let level = |level: usize| -> Result<Box<dyn Buffer>, EngineError> {
            let tensor = Tensor::empty(shape, (Kind::Float, Device::Cpu));
            self.group.start_recv(&tensor, rank, tag(header.kind, level))?.wait()?;
            Ok(Box::new(TorchBuffer::new(&tensor)))
        };
        let tensors = (0..num_tensors).map(level).collect::<Result<_, _>>()?;
        Ok(Some(Parcel::new(header, tensors)))
    }

    /// Returns the tensors of all trained parameters of both pools by their names, whole, on the first rank: others leave theirs in
    /// `meeting`.
    fn whole(
        &self,
        meeting: &Path,
        what: &str,
        tensor: impl Fn(&TrainState, ParamId) -> Result<Tensor, crate::native::NativeError>,
    ) -> Result<Vec<(String, Tensor)>, EngineError> {
        let _no_grad = tch::no_grad_guard();
        let mut own: BTreeMap<String, Tensor> = BTreeMap::new();
        let states = self.encoder.iter().map(|worker| &worker.state);
        for state in states.chain(self.foundation.iter().map(|worker| &worker.rank.state)) {
            let params = state.params();
            let mut found = BTreeMap::new();
            for id in params.trained_ids() {
                let part = tensor(state, id)?;
                let whole = match state.mesh() {
                    Some(mesh) => gather_whole(params.spec(id), &part, mesh)?,
                    None => part,
                };
                found.insert(id, whole.copy());
            }
            let copies: BTreeSet<String> = params
                .trained_ids()
                .filter(|id| params.spec(*id).is_copy)
                .flat_map(|id| params.spec(id).pieces.iter().map(|piece| piece.name.clone()))
                .collect();
            let parts = reference_parts(params, &self.tree, |id| found[&id].shallow_clone());
            own.extend(parts.into_iter().filter(|(name, _)| !copies.contains(name)));
        }
        let path = |rank: usize| meeting.join(format!("{what}-{rank}.safetensors"));
        let own: Vec<(String, Tensor)> = own.into_iter().map(|(name, tensor)| (name, tensor.contiguous())).collect();
        Tensor::write_safetensors(&own, path(self.group.rank()))?;
        self.group.barrier()?;
        let mut all = BTreeMap::new();
        for rank in (0..self.group.world()).filter(|_| self.group.rank() == 0) {
            all.extend(fixture_tensors(&path(rank))?);
        }
        Ok(all.into_iter().collect())
    }
}

/// Describes which process an actor is in.
#[derive(Clone)]
struct Ranks {
    /// The actors in the order of their processes.
    actors: Vec<ActorId>,
    /// One process is all.
    alone: bool,
}

impl Ranks {
    fn new(layouts: &PoolLayouts, towers: TowerSet, alone: bool) -> Self {
        let foundations = (0..layouts.foundation.ranks() as u32).map(ActorId::foundation);
        let of_pool = |pool: EncoderPool| {
            (0..pool.layout.layout.ranks() as u32).map(move |index| ActorId::encoder_of(pool.name, index))
        };
        let actors = foundations.chain(layouts.encoders(towers).into_iter().flat_map(of_pool)).collect();
        Self { actors, alone }
    }

    /// Returns the process that an actor is in.
    fn of(&self, actor: ActorId) -> usize {
        if self.alone {
            0
        } else {
            self.actors.iter().position(|&other| other == actor).expect("an actor of the layout")
        }
    }
}

/// Returns the tag of tensor `level` of a parcel.
fn tag(kind: ParcelKind, level: usize) -> i32 {
    assert!(level < MAX_TENSORS, "levels of features");
    let (unit, back) = match kind {
        ParcelKind::Features(unit) => (unit, 0),
        ParcelKind::Gradient(unit) => (unit, 1),
        other => unreachable!("{other:?} is not posted"),
    };
    (((unit.step.0 as usize * 64 + unit.index as usize) * 2 + back) * MAX_TENSORS + level) as i32
}

/// The parcels that parts have sent and that were not posted yet.
#[derive(Clone, Default)]
struct Outbox(Arc<Mutex<Vec<(ActorId, Parcel)>>>);

struct Post {
    to: ActorId,
    outbox: Outbox,
}

impl Edge for Post {
    fn try_send(&mut self, parcel: Parcel) -> Result<(), Refused> {
        self.outbox.0.lock().expect("nobody panicked").push((self.to, parcel));
        Ok(())
    }

    fn load(&mut self) -> (usize, usize) {
        (0, usize::MAX)
    }
}
