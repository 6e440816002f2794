//! A foundation engine: packs in plan order, each as soon as it is whole.

use super::{Fuse, Script, copies, digest, mix, take_out};
use loongforge_core::engine::{Engine, EngineError, Ports, Progress};
use loongforge_core::message::*;
use loongforge_core::transport::{Buffer, Header, HostTensor, Parcel, ParcelKind};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub struct FakeFoundation {
    me: Replica,
    script: Script,
    version: u64,
    /// Steps that were applied, and not dropped, up to the last of them.
    applied: u64,
    plans: VecDeque<Arc<StepPlan>>,
    /// Packs of the first plan that are done, and the sum of their losses.
    num_done: usize,
    loss: f64,
    reported: bool,
    tokens: BTreeMap<PackId, BTreeMap<ActorId, Parcel>>,
    features: BTreeMap<UnitId, Parcel>,
    consumed: BTreeSet<ItemId>,
    /// The maker of the features of each unit, as far as is known.
    sent_by: BTreeMap<UnitId, ActorId>,
    /// Steps before it were shared out anew: their features must not wait for each other's credit.
    anew: StepId,
    /// The gradients that were returned for the units of the first plan: they are returned again where features come again.
    returned: BTreeMap<UnitId, (u64, Vec<HostTensor>)>,
    due: Vec<(StepId, SaveTo)>,
    /// First pack of the last evaluation that has ended.
    evaluated: u32,
    fuse: Fuse,
}

impl FakeFoundation {
    pub fn new(me: ActorId, script: Script) -> Self {
        Self {
            me: Replica::new(me.pool, me.index),
            version: script.first_step,
            applied: script.first_step,
            plans: VecDeque::new(),
            num_done: 0,
            loss: 0.0,
            reported: false,
            tokens: BTreeMap::new(),
            features: BTreeMap::new(),
            consumed: BTreeSet::new(),
            sent_by: BTreeMap::new(),
            anew: StepId(0),
            returned: BTreeMap::new(),
            due: Vec::new(),
            evaluated: 0,
            fuse: Fuse::new(me, &script),
            script,
        }
    }

    fn compute(&mut self, ports: &mut Ports) -> Result<bool, EngineError> {
        let Some(plan) = self.plans.front().cloned() else { return Ok(false) };
        let Some(pack) = plan.packs_of(self.me).nth(self.num_done) else { return Ok(self.report(&plan, ports)) };
        let owners: BTreeSet<u32> = pack.samples.iter().map(|sample| sample.owner).collect();
        let units: Vec<&Unit> = plan.units_of(pack.id).filter(|unit| !unit.is_skipped()).collect();
        let mut own = plan.units.iter().filter(|unit| unit.replica == self.me && !unit.is_skipped());
        if self.script.whole_steps && self.num_done == 0 && own.any(|unit| !self.features.contains_key(&unit.id)) {
            return Ok(false);
        }
        let whole = self.tokens.get(&pack.id).is_some_and(|tokens| tokens.len() == owners.len())
            && units.iter().all(|unit| self.features.contains_key(&unit.id));
        if !whole {
            return Ok(false);
        }
        std::thread::sleep(self.script.pause);
        let tokens = self.tokens.remove(&pack.id).unwrap_or_default();
        let num_tokens: usize =
            tokens.values().map(|parcel| parcel.num_bytes() / SampleMeta::BYTES_PER_TOKEN as usize).sum();
        assert_eq!(num_tokens, pack.num_tokens());
        let mut value = tokens.values().fold(0, |sum, parcel| sum ^ digest(parcel));
        for unit in units {
            let features = self.features.remove(&unit.id).expect("looked at above");
            let frozen = self.script.is_frozen(unit.encoder.pool);
            let version = if frozen { 0 } else { plan.step.0 };
            assert_eq!(features.header.version, Version(version), "{}", unit.id);
            for item in &unit.items {
                assert!(self.consumed.insert(item.id), "{:?} is consumed twice", item.id);
            }
            value = mix(value, digest(&features));
            if !plan.purpose.is_evaluation() {
                let tensors = if frozen { vec![] } else { copies(&features) };
                self.returned.insert(unit.id, (digest(&features), tensors));
            }
            let from = self.sent_by[&unit.id];
            // The activation's memory is free before its gradient is sent.
            drop(features);
            if !plan.purpose.is_evaluation() {
                self.give_back(unit.id, from, ports)?;
            }
        }
        // Whole numbers, so that the sum does not depend on the number of replicas.
        self.loss += (mix(value, self.version) % 1_000_000) as f64;
        self.num_done += 1;
        Ok(true)
    }

    fn give_back(&self, unit: UnitId, to: ActorId, ports: &mut Ports) -> Result<(), EngineError> {
        if self.script.is_frozen(to.pool) {
            return Ok(());
        }
        let header = Header { kind: ParcelKind::Gradient(unit), version: Version(self.version) };
        let tensors = self.returned[&unit].1.iter().map(|tensor| Box::new(tensor.clone()) as Box<dyn Buffer>);
        ports.send(to, Parcel::new(header, tensors.collect()))
    }

    fn report(&mut self, plan: &StepPlan, ports: &mut Ports) -> bool {
        if self.reported {
            return false;
        }
        self.reported = true;
        let step = plan.step;
        if plan.purpose.is_evaluation() {
            let packs = || plan.packs_of(self.me).flat_map(|pack| &pack.samples);
            let evaluation = EvaluationReport {
                // More noise, more loss.
                loss_sum: self.loss + packs().filter_map(|sample| sample.target).map(|it| it.sigma.get()).sum::<f64>(),
                num_targets: packs().map(|sample| u64::from(sample.num_targets)).sum(),
                num_correct: Some(packs().count() as u64),
                outputs: Vec::new(),
                made: match plan.purpose.is_sample() {
                    true => packs().map(|sample| (sample.id, format!("{}.png", sample.id))).collect(),
                    false => Vec::new(),
                },
                acted: Vec::new(),
            };
            let evaluation = Some(Box::new(evaluation));
            ports.emit(Event::Reduced(StepReport { step, evaluation, ..StepReport::default() }));
            return true;
        }
        let broken = |sample: &SampleMeta| self.script.nan_samples.contains(&sample.id.0);
        let is_nan = plan.packs_of(self.me).flat_map(|pack| &pack.samples).any(broken);
        let is_nan = is_nan || self.script.nan_loss.contains(&step.0);
        let loss = if is_nan { f64::NAN } else { self.loss };
        let samples = plan.packs_of(self.me).flat_map(|pack| &pack.samples);
        let packs = samples.map(|sample| super::seconds(f64::from(sample.num_tokens))).sum();
        let grad_square_sum = if self.script.infinite_gradient.contains(&step.0) { f64::INFINITY } else { 16.0 };
        let timings = Timings { packs, ..Timings::default() };
        ports.emit(Event::Reduced(StepReport { step, loss, grad_square_sum, timings, ..StepReport::default() }));
        true
    }

    fn close_step(&mut self, step: StepId, ports: &mut Ports) {
        assert!(self.reported && step.0 == self.version, "step {step} is decided in turn");
        let plan = self.plans.pop_front().expect("a plan is decided");
        self.returned.retain(|unit, _| unit.step > step);
        self.sent_by.retain(|unit, _| unit.step > step);
        (self.num_done, self.loss, self.reported) = (0, 0.0, false);
        match plan.purpose {
            Purpose::Train => self.version += 1,
            _ => self.evaluated = plan.first_pack().map_or(0, |pack| pack.index),
        }
        ports.emit(Event::Applied { step });
        self.save_due(ports);
    }

    /// The scheduler asks for a save before its step ends, or later.
    fn save_due(&mut self, ports: &mut Ports) {
        let version = self.version;
        for (step, to) in self.due.extract_if(.., |(step, _)| step.0 < version).collect::<Vec<_>>() {
            assert!(self.applied <= step.0 + 1, "what is saved is what the step left");
            let name = format!("{}-{}.safetensors", self.me.pool, self.me.index);
            let files = vec![SavedFile { name, bytes: 1, sha256: "00".into(), tensors: vec![] }];
            ports.emit(Event::Saved { step, to, files });
        }
    }
}

impl Engine for FakeFoundation {
    fn command(&mut self, command: Command, ports: &mut Ports) -> Result<(), EngineError> {
        match command {
            Command::Plan(plan) => self.plans.push_back(plan),
            Command::Regroup(regroup) => {
                for plan in &regroup.plans {
                    self.plans.iter_mut().filter(|old| old.step == plan.step).for_each(|old| *old = plan.clone());
                }
                self.anew = regroup.plans.last().map_or(self.anew, |plan| StepId(plan.step.0 + 1));
                let features = std::mem::take(&mut self.features);
                self.features = features.into_iter().map(|(unit, parcel)| (unit, take_out(parcel))).collect();
            }
            Command::Commit(commit) => {
                self.applied = commit.step.0 + 1;
                self.close_step(commit.step, ports);
            }
            Command::Abort { step } => {
                // What was dropped may be computed again.
                let plan = self.plans.front().filter(|plan| plan.step == step).cloned();
                for item in plan.iter().flat_map(|plan| &plan.units).flat_map(|unit| &unit.items) {
                    self.consumed.remove(&item.id);
                }
                self.close_step(step, ports);
            }
            Command::Save { step, to, .. } => {
                self.due.push((step, to));
                self.save_due(ports);
            }
            other => return Err(format!("a foundation engine is not told {other:?}").into()),
        }
        Ok(())
    }

    fn arrive(&mut self, from: ActorId, parcel: Parcel, ports: &mut Ports) -> Result<(), EngineError> {
        match parcel.header.kind {
            ParcelKind::Columns(pack) => {
                let before = self.tokens.entry(pack).or_default().insert(from, parcel);
                assert!(before.is_none(), "tokens of {pack} came twice");
            }
            ParcelKind::Features(unit) => {
                if unit.step.0 < self.version {
                    // Of a frozen encoder, the second time: nobody has waited for it.
                    assert!(self.script.is_frozen(from.pool), "{unit} of {from} is late");
                    return Ok(());
                }
                if unit.is_of_evaluation() && unit.index < self.evaluated + FIRST_EVALUATION_INDEX {
                    // Shared out anew, and nobody has waited for it.
                    return Ok(());
                }
                let parcel = if unit.step < self.anew { take_out(parcel) } else { parcel };
                let before = self.sent_by.insert(unit, from);
                assert_ne!(before, Some(from), "features of {unit} came twice from one encoder");
                if let Some((value, _)) = self.returned.get(&unit) {
                    assert_eq!(*value, digest(&parcel), "the features of {unit} are others now");
                    return self.give_back(unit, from, ports);
                }
                self.features.entry(unit).or_insert(parcel);
            }
            kind => return Err(format!("{kind:?} came to a foundation engine").into()),
        }
        Ok(())
    }

    fn work(&mut self, ports: &mut Ports) -> Result<Progress, EngineError> {
        self.fuse.burn()?;
        let worked = self.compute(ports)?;
        Ok(if worked { Progress::Busy } else { Progress::Idle })
    }
}
