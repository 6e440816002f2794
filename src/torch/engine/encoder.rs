//! The encoder's part of a step: units forward in deadline order, backward in lane order as gradients come back.

mod cached;
mod encoding;
mod towers;
mod unit_work;

pub(super) use self::cached::encode_one;
pub use self::towers::TowerModels;
use self::unit_work::{ItemCredit, Phase, Step, UnitWork};
use super::activations::Activations;
use super::buffer::{TorchBuffer, take_over};
use super::cache::FeatureCache;
use super::cache_folder::CacheFolder;
use super::elastic::Membership;
use super::feature_reader::FeatureReader;
use super::spill::Spill;
use super::stored_towers::StoredTowers;
use crate::comm::Mesh;
use crate::model::{ModelTower, Towers};
use crate::params::Masks;
use crate::train::TrainState;
use loongforge_core::engine::{EngineError, Ports, Progress};
use loongforge_core::message::{
    Activity, ActorId, Lane, PoolName, Regroup, Replica, StepPlan, Tower, TowerSet, UnitId, Version,
};
use loongforge_core::transport::{Parcel, ParcelKind};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use tch::Tensor;

/// Encodes the units of one encoder replica.
///
/// A trained encoder works on one step at a time, since the next needs its new parameters; a frozen one runs ahead
/// over every step that is planned.
pub struct EncoderWorker {
    replica: Replica,
    models: TowerModels,
    pub(super) state: TrainState,
    /// The ranks that compute this encoder together.
    mesh: Rc<Mesh>,
    /// The towers whose features' gradients come back.
    trained: TowerSet,
    activations: Activations,
    /// `None`: the pool is what it is from the beginning to the end.
    pub(super) membership: Option<Membership>,
    steps: VecDeque<Step>,
    cache: Option<FeatureCache>,
    /// The reader of an encoder that has no towers, and reads all features.
    reader: Option<FeatureReader>,
    /// Frozen towers encode items one by one also without a cache, so that their features have the same bits with one.
    one_by_one: bool,
    /// Features are missing: the run ends.
    lacks: bool,
    items: Option<ItemCredit>,
}

impl EncoderWorker {
    /// Returns an encoder of the run; of one that is split among ranks, this rank's part.
    pub fn new(replica: Replica, models: TowerModels, state: TrainState, membership: Option<Membership>) -> Self {
        Self {
            replica,
            mesh: state.mesh_or_single(),
            trained: Tower::ALL.into_iter().collect(),
            models,
            state,
            activations: Activations::default(),
            membership,
            steps: VecDeque::new(),
            cache: None,
            reader: None,
            one_by_one: false,
            lacks: false,
            items: None,
        }
    }

    /// Returns an actor of a pool without encoders, which reads features where they would encode.
    pub(super) fn reading(
        replica: Replica,
        reader: FeatureReader,
        state: TrainState,
        membership: Option<Membership>,
    ) -> Self {
        let models = TowerModels::default();
        Self { reader: Some(reader), ..Self::new(replica, models, state, membership) }
    }

    /// Returns the towers of its pool, where it has none of them in memory.
    pub(super) fn stored_towers(&self) -> Option<&Arc<StoredTowers>> {
        self.reader.as_ref().map(|reader| &reader.towers)
    }

    /// Items come over edges of their own, each with so many bytes of credit, and are read where they lie.
    pub(super) fn with_item_credit(self, bytes: usize, towers: &Towers) -> Self {
        let row_bytes = |it: &ModelTower| (it.tower, it.family.patch_dim() as usize * size_of::<f32>());
        Self { items: Some(ItemCredit { bytes, row_bytes: towers.iter().map(row_bytes).collect() }), ..self }
    }

    /// Waits for gradients of the features of these towers alone: nothing of its others is trained.
    pub(super) fn with_trained(self, trained: TowerSet) -> Self {
        Self { trained, ..self }
    }

    /// Returns whether gradients of the features of a tower are to come.
    pub(super) fn is_trained(&self, tower: Tower) -> bool {
        self.state.is_trained() && self.trained.contains(tower)
    }

    /// Sets a budget for activations.
    pub fn with_activations(self, activations: Activations) -> Self {
        Self { activations, ..self }
    }

    /// Encodes items of frozen towers one by one also without a cache, all but those of a reference model.
    pub fn one_by_one(self, one_by_one: bool) -> Self {
        Self { one_by_one, ..self }
    }

    /// Keeps so many bytes of features, where the encoder is frozen. Items are then encoded one by one, so that an item's
    /// features have the same bits whatever else is in its unit, and whether they were kept or not.
    pub fn with_cache(self, bytes: u64) -> Self {
        let cache = (bytes > 0 && !self.state.is_trained()).then(|| FeatureCache::new(bytes));
        Self { cache, ..self }
    }

    /// Keeps features in folders that outlive the run, too; for frozen encoders.
    pub(super) fn with_cache_folders(mut self, folders: BTreeMap<Tower, CacheFolder>) -> Self {
        self.cache = Some(self.cache.take().unwrap_or_else(|| FeatureCache::new(0)).with_folders(folders));
        self
    }

    /// Writes the features that are to outlive the run.
    pub(super) fn flush_cache(&mut self) {
        self.cache.iter_mut().for_each(FeatureCache::flush);
    }

    /// Adds a file for what the cache has no memory for.
    pub(super) fn with_spill(mut self, spill: Option<Spill>) -> Self {
        self.cache = self.cache.take().map(|cache| match spill {
            Some(spill) => cache.with_spill(spill),
            None => cache,
        });
        self
    }

    /// Returns the encoder's pool.
    pub(super) fn pool_name(&self) -> PoolName {
        self.replica.pool
    }

    /// Takes the units that were given to this encoder in place of who has left, and steps that it has not heard of.
    pub(super) fn regroup(&mut self, regroup: &Regroup) {
        for plan in &regroup.plans {
            let Some(step) = self.steps.iter_mut().find(|step| step.id == plan.step) else {
                self.plan(plan);
                continue;
            };
            let moved =
                plan.units.iter().filter(|unit| unit.encoder == self.replica && regroup.moved.contains(&unit.id));
            step.units.extend(moved.map(|unit| UnitWork::new(unit, plan, self.trained)));
            step.units.sort_by_key(|work| work.unit.id);
        }
        for step in &mut self.steps {
            step.is_regrouped = true;
            step.units.iter().for_each(UnitWork::take_over);
        }
        if let Some(membership) = &mut self.membership {
            membership.regroup(regroup);
            self.state.set_rank(membership.rank());
        }
    }

    /// Returns whether a unit of a step that is known here is this encoder's.
    pub(super) fn has(&self, id: UnitId) -> bool {
        let mut units = self.steps.iter().filter(|step| step.id == id.step).flat_map(|step| &step.units);
        units.any(|work| work.unit.id == id)
    }

    /// Takes a step that is planned, with the units that this encoder is given.
    pub(super) fn plan(&mut self, plan: &StepPlan) {
        let mine = plan.units.iter().filter(|unit| unit.encoder == self.replica);
        let units: Vec<UnitWork> = mine.map(|unit| UnitWork::new(unit, plan, self.trained)).collect();
        let fits = self.items.as_ref().is_some_and(|items| items.fits(&units));
        self.steps.push_back(Step { id: plan.step, units, is_regrouped: false, fits });
    }

    /// Takes pixels or what the foundation returns.
    pub(super) fn arrive(&mut self, from: ActorId, parcel: Parcel) -> Result<(), EngineError> {
        let (id, kind) = match parcel.header.kind {
            ParcelKind::Items(id) | ParcelKind::Gradient(id) => (id, parcel.header.kind),
            other => return Err(format!("{from} sent {other:?}, which an encoder does not take").into()),
        };
        let device = self.state.params().flat().device();
        if id.is_of_evaluation() && !self.has(id) {
            // Late: the unit was given to another encoder, and the evaluation has ended.
            return Ok(());
        }
        let gives_back = self.gives_back(kind);
        let work = self.find(id).ok_or_else(|| format!("{from} sent {kind:?}, which is not planned here"))?;
        let into_tensor = |buffer| TorchBuffer::into_tensor(buffer, device);
        let tensors: Vec<Tensor> = parcel.tensors.into_iter().map(into_tensor).collect();
        if gives_back {
            take_over(&tensors);
        }
        match (kind, std::mem::replace(&mut work.phase, Phase::Done)) {
            (ParcelKind::Items(_), Phase::Waiting) => {
                work.phase = Phase::Waiting;
                work.pixels.insert(from.index, tensors).map_err(|error| format!("pixels of {id}: {error}").into())
            }
            (ParcelKind::Gradient(_), Phase::Sent { run }) => {
                work.phase = Phase::Returned { run, grads: tensors };
                Ok(())
            }
            _ => Err(format!("{from} sent {kind:?} out of order").into()),
        }
    }

    /// Returns whether what arrives gives its credit back at once: see [`super::buffer`].
    fn gives_back(&self, kind: ParcelKind) -> bool {
        let step = self.steps.iter().find(|step| step.id == kind.step());
        step.is_some_and(|step| {
            let reads_again = self.state.is_trained() && step.units.iter().any(|work| work.trains);
            let keeps = self.items.is_some() && (step.fits || !reads_again);
            step.is_regrouped || matches!(kind, ParcelKind::Items(_)) && !keeps
        })
    }

    fn find(&mut self, id: UnitId) -> Option<&mut UnitWork> {
        let step = self.steps.iter_mut().find(|step| step.id == id.step)?;
        step.units.iter_mut().find(|work| work.unit.id == id)
    }

    /// Encodes one unit, or else runs one backward. `version` is the number of steps that were applied.
    pub(super) fn work(&mut self, version: Version, ports: &mut Ports) -> Result<Progress, EngineError> {
        let start = Instant::now();
        let done = match self.encode_next(version, ports)? {
            Some(id) => Some((Activity::Encode, id)),
            None => self.backward_next(ports)?.map(|id| (Activity::EncoderBackward, id)),
        };
        let Some((activity, id)) = done else {
            // Only who can be replaced has told of units.
            ports.at(None);
            return Ok(Progress::Idle);
        };
        ports.trace.span(activity, Some((id.step, Some(id.index))), start);
        Ok(Progress::Busy)
    }

    /// Returns whether all of the first step is encoded and sent.
    pub(super) fn has_encoded(&self) -> bool {
        let waits = |work: &UnitWork| matches!(work.phase, Phase::Waiting);
        self.steps.front().is_none_or(|step| !step.units.iter().any(waits))
    }

    /// Returns whether units have one order for all ranks: those that compute an encoder together meet in each of them.
    fn in_step(&self) -> bool {
        self.mesh.tp.world() > 1
    }

    /// Runs the next backward of a unit that has its gradients: in each lane strictly in the order of its units, so that a sum does not
    /// depend on who was faster.
    fn backward_next(&mut self, ports: &mut Ports) -> Result<Option<UnitId>, EngineError> {
        let in_step = self.in_step();
        // Who has yet to encode a unit meets others in that first.
        if in_step && !self.has_encoded() {
            return Ok(None);
        }
        let Some(step) = self.steps.front_mut() else { return Ok(None) };
        let mut blocked = Vec::new();
        for work in &mut step.units {
            let lane = work.unit.lane;
            let queue = if in_step { Lane(0) } else { lane };
            if matches!(work.phase, Phase::Done) || blocked.contains(&queue) {
                continue;
            }
            if !matches!(work.phase, Phase::Returned { .. }) {
                blocked.push(queue);
                continue;
            }
            let Phase::Returned { run: (mut run, outputs), grads } = std::mem::replace(&mut work.phase, Phase::Done)
            else {
                unreachable!("matched above")
            };
            if outputs.len() != grads.len() {
                return Err(format!(
                    "{} has {} outputs, but got {} gradients",
                    work.unit.id,
                    outputs.len(),
                    grads.len()
                )
                .into());
            }
            work.read_again = None;
            if self.membership.is_some() {
                ports.at(Some(work.unit.id));
            }
            outputs.iter().zip(grads).for_each(|(&slot, grad)| run.seed(slot, grad));
            self.state.params().set_dropout(Some(Masks::new(work.unit.id.seed(), Vec::new())));
            run.backward(match self.membership {
                Some(_) => self.state.any_lane(lane),
                None => self.state.lane(lane),
            })?;
            let grids = work.unit.items.iter().map(|item| item.meta.grid.num_cells() as i64);
            self.activations.learn(&run, grids.sum());
            return Ok(Some(work.unit.id));
        }
        Ok(None)
    }

    /// Returns whether nothing is left to do for the step that is so many behind the first one.
    pub(super) fn is_finished(&self, behind: usize) -> bool {
        self.steps.get(behind).is_none_or(|step| step.units.iter().all(|work| matches!(work.phase, Phase::Done)))
    }

    /// Forgets the first step, which was applied or aborted.
    pub(super) fn finish_step(&mut self) {
        self.steps.pop_front();
    }
}

#[cfg(test)]
#[path = "encoder_tests.rs"]
mod tests;
