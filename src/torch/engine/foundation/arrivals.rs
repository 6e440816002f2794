//! The inputs that come to a foundation: tokens and features, which are compared with the plan before anything of them is taken.

use super::rank::Rank;
use super::step::Step;
use crate::engine::buffer::{TorchBuffer, take_over};
use crate::engine::pack_work::{EncoderPeers, Features, Return, input_of};
use crate::model::FeatureInput;
use loongforge_core::engine::{EngineError, Ports};
use loongforge_core::message::{
    ActorId, Event, PackId, PoolName, Regroup, Replica, Role, StepId, StepPlan, TowerSet, Unit, UnitId, Version,
};
use loongforge_core::transport::{Header, Parcel, ParcelKind};
use std::collections::{BTreeMap, VecDeque};
use tch::{Device, Kind, Tensor};

/// Takes in what comes for planned steps, from data actors and from the encoders that it knows.
pub(super) struct Arrivals {
    /// The encoders whose features the foundation reads, by pool.
    encoders: BTreeMap<PoolName, EncoderPeers>,
    /// Encoders live in the foundation's actors.
    pub colocated: bool,
    /// Features from another encoder than the plan names: the `Regroup` that gives it the unit may be on its way.
    early_features: Vec<(ActorId, Parcel)>,
}

/// The error of a parcel; the unit that is still to come from somebody, if it was its sender's.
struct Wrong {
    reason: String,
    lacks: Option<UnitId>,
}

impl Arrivals {
    /// Expects features of these encoder pools, whose actors are others than the foundation's.
    pub fn new(encoders: BTreeMap<PoolName, EncoderPeers>) -> Arrivals {
        Arrivals { encoders, colocated: false, early_features: Vec::new() }
    }

    /// Returns the towers whose encoders want gradients of their features.
    pub fn trained_towers(&self) -> TowerSet {
        self.encoders.values().flat_map(|peers| peers.trained.iter()).collect()
    }

    /// Returns whether all features of a step are taken in before it begins: they come from ranks that wait for each other within
    /// a step.
    pub fn gathers_first(&self, rank: &Rank) -> bool {
        self.colocated && rank.meets_others()
    }

    /// Describes how gradients of features that were made with this version go back.
    pub fn returns(&self, version: Version) -> Return {
        Return { encoders: self.encoders.clone(), version }
    }

    /// Returns the actor that sends each unit's features, where encoders have actors of their own.
    pub fn owners(&self, plan: &StepPlan, replica: Replica) -> BTreeMap<UnitId, ActorId> {
        let mine = plan.units.iter().filter(|unit| unit.replica == replica && !unit.is_skipped());
        let ranks = |pool| self.encoders.get(&pool).map_or(1, |peers| peers.ranks);
        mine.map(|unit| (unit.id, unit.encoder.leader(Role::Encoder, ranks(unit.encoder.pool)))).collect()
    }

    /// Lets other encoders compute units of these steps.
    pub fn regroup(&self, regroup: &Regroup, replica: Replica, steps: &mut VecDeque<Step>) {
        for plan in &regroup.plans {
            let owners = self.owners(plan, replica);
            steps.iter_mut().filter(|step| step.id == plan.step).for_each(|step| step.owners.clone_from(&owners));
        }
        for step in steps.iter_mut().filter(|step| regroup.plans.iter().any(|plan| plan.step == step.id)) {
            step.is_regrouped = true;
            let plan = regroup.plans.iter().find(|plan| plan.step == step.id).expect("it is one of them");
            let is_skipped = |id: UnitId| plan.unit(id).is_some_and(Unit::is_skipped);
            step.packs.iter_mut().for_each(|pack| pack.skip(is_skipped));
            let units = step.packs.iter_mut().flat_map(|pack| &mut pack.units);
            units.filter_map(|unit| unit.features.as_mut()).for_each(|(_, features)| {
                features.credit = None;
                take_over(&features.tensors);
            });
        }
    }

    /// Takes tokens or features. A parcel of an encoder is compared with the unit that the encoder was given, and refused where it does
    /// not fit.
    ///
    /// # Errors
    /// Another actor than an encoder has sent what is not planned or does not fit the plan.
    pub fn arrive(
        &mut self,
        (from, parcel): (ActorId, Parcel),
        rank: &Rank,
        steps: &mut VecDeque<Step>,
        ports: &mut Ports,
    ) -> Result<(), EngineError> {
        let kind = parcel.header.kind;
        let owner = match kind {
            ParcelKind::Features(id) => {
                let step = steps.iter().find(|step| step.id == id.step);
                step.and_then(|step| step.owners.get(&id).copied().filter(|owner| *owner != from))
            }
            _ => None,
        };
        if from.role == Role::Encoder && owner.is_some() {
            self.early_features.push((from, parcel));
            return Ok(());
        }
        match self.take((from, parcel), rank, steps, ports)? {
            Some(Wrong { reason, lacks }) if from.role == Role::Encoder => {
                ports.emit(Event::Refused { peer: from, reason, lacks });
                Ok(())
            }
            Some(Wrong { reason, .. }) => Err(format!("{from}: {reason}").into()),
            None => Ok(()),
        }
    }

    /// Returns the features that came before the `Regroup` that tells whose they are: they are to arrive once more.
    pub fn take_early_features(&mut self) -> Vec<(ActorId, Parcel)> {
        std::mem::take(&mut self.early_features)
    }

    /// Forgets the features that others than the owners of their units have sent until a step that has ended, and returns who sent
    /// them.
    pub fn late(&mut self, step: StepId) -> Vec<(ActorId, ParcelKind)> {
        let late = self.early_features.extract_if(.., |(_, parcel)| parcel.header.kind.step() <= step);
        late.map(|(from, parcel)| (from, parcel.header.kind)).collect()
    }

    fn take(
        &self,
        (from, parcel): (ActorId, Parcel),
        rank: &Rank,
        steps: &mut VecDeque<Step>,
        ports: &mut Ports,
    ) -> Result<Option<Wrong>, EngineError> {
        match parcel.header.kind {
            kind @ ParcelKind::Columns(_) if from.role == Role::Encoder => {
                wrong(format!("{kind:?} is not sent by encoders"))
            }
            ParcelKind::Columns(id) => self.take_columns(id, (from, parcel), rank, steps),
            ParcelKind::Features(id) => self.take_features(id, (from, parcel), rank, steps, ports),
            other => wrong(format!("a foundation actor cannot take {other:?}")),
        }
    }

    /// Takes a data actor's columns of a pack.
    fn take_columns(
        &self,
        id: PackId,
        (from, parcel): (ActorId, Parcel),
        rank: &Rank,
        steps: &mut VecDeque<Step>,
    ) -> Result<Option<Wrong>, EngineError> {
        let packs = steps.iter_mut().find(|step| step.id == id.step).map(|step| &mut step.packs);
        let Some(work) = packs.and_then(|packs| packs.iter_mut().find(|work| work.pack.id == id)) else {
            return unplanned(parcel.header.kind);
        };
        // They go to a GPU with their pack, and are read on the host as well.
        let into_tensor = |buffer| TorchBuffer::into_tensor(buffer, Device::Cpu);
        let tensors: Vec<Tensor> = parcel.tensors.into_iter().map(into_tensor).collect();
        let columns = rank.columns();
        let kinds: Vec<Kind> = tensors.iter().map(Tensor::kind).collect();
        if !kinds.iter().eq(columns.iter().map(|column| &column.kind)) {
            let read = columns.iter().map(|column| format!("{} ({:?})", column.name, column.kind));
            let read = read.collect::<Vec<_>>().join(", ");
            return wrong(format!("samples have columns of {kinds:?}, but the model reads {read}"));
        }
        if self.colocated {
            take_over(&tensors);
        }
        work.tokens.insert(from.index, tensors).map_err(|error| format!("tokens of {id}: {error}"))?;
        Ok(None)
    }

    /// Takes an encoder's features of a unit.
    fn take_features(
        &self,
        id: UnitId,
        (from, parcel): (ActorId, Parcel),
        rank: &Rank,
        steps: &mut VecDeque<Step>,
        ports: &mut Ports,
    ) -> Result<Option<Wrong>, EngineError> {
        let Header { kind, version } = parcel.header;
        let (device, inputs) = (rank.device(), rank.inputs());
        let encoders = &self.encoders;
        let Some(step) = steps.iter_mut().find(|known| known.id == id.step) else {
            // Late: a unit was given to another encoder when its features were here already, and the step has ended, since
            // nobody waits for what frozen encoders make twice.
            let trains = || !self.trained_towers().is_empty();
            let wants_all = encoders.get(&from.pool).map_or_else(trains, EncoderPeers::wants_all);
            return if wants_all || from.role != Role::Encoder { unplanned(kind) } else { Ok(None) };
        };
        if let Some(grads) = step.returned.get(&id) {
            self.returns(version).give_back(id, (from.pool, from), grads, ports)?;
            return Ok(None);
        }
        let is_regrouped = step.is_regrouped;
        let mut units = step.packs.iter_mut().flat_map(|work| &mut work.units);
        let Some(unit) = units.find(|unit| unit.id == id) else {
            // Late: of an evaluation that has ended.
            return if id.is_of_evaluation() { Ok(None) } else { unplanned(kind) };
        };
        match &mut unit.features {
            Some((sender, _)) if *sender == from => return wrong(format!("{kind:?} arrived twice")),
            // From one that has died since: the same, but it is the other one now who waits for the gradient.
            Some((sender, _)) => {
                *sender = from;
                return Ok(None);
            }
            None => {}
        }
        let missing = |reason| Ok(Some(Wrong { reason, lacks: Some(id) }));
        let trained = encoders.get(&unit.pool).is_some_and(|peers| !peers.trained.is_empty());
        if trained && version != Version(step.id.0) {
            return missing(format!("{kind:?} was computed with parameters of version {version}"));
        }
        let into_tensor = |buffer| TorchBuffer::into_tensor(buffer, device);
        let tensors: Vec<Tensor> = parcel.tensors.into_iter().map(into_tensor).collect();
        let FeatureInput { num_tensors, width, .. } = inputs[input_of(inputs, unit.tower)?];
        let is_wrong = |tensor: &Tensor| tensor.size() != [unit.num_features, width] || tensor.kind() == Kind::Int64;
        if tensors.len() != num_tensors || tensors.iter().any(is_wrong) {
            let shapes: Vec<_> = tensors.iter().map(Tensor::size).collect();
            let want = format!("{num_tensors} tensors of [{}, {width}]", unit.num_features);
            return missing(format!("{kind:?} has shapes {shapes:?}; expected {want}"));
        }
        let gives_back = is_regrouped || self.gathers_first(rank);
        if gives_back {
            take_over(&tensors);
        }
        let credit = parcel.credit.filter(|_| !gives_back);
        unit.features = Some((from, Features { tensors, credit }));
        Ok(None)
    }
}

fn wrong(reason: String) -> Result<Option<Wrong>, EngineError> {
    Ok(Some(Wrong { reason, lacks: None }))
}

fn unplanned(kind: ParcelKind) -> Result<Option<Wrong>, EngineError> {
    wrong(format!("{kind:?} is not planned here"))
}
