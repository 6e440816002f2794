//! An encoder engine: units in plan order, gradients in any order, one report a step.

use super::{Fuse, Script, digest, mix, take_out};
use loongforge_core::engine::{Engine, EngineError, Ports, Progress};
use loongforge_core::message::*;
use loongforge_core::transport::{Header, HostTensor, Parcel, ParcelKind};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

pub struct FakeEncoder {
    me: ActorId,
    frozen: bool,
    version: u64,
    /// Steps that were applied, and not dropped, up to the last of them.
    applied: u64,
    plans: VecDeque<Arc<StepPlan>>,
    /// Units of the first plans that are still to be encoded.
    to_encode: VecDeque<Unit>,
    pixels: BTreeMap<UnitId, BTreeMap<ActorId, Parcel>>,
    /// Encoded; waiting for a gradient.
    open: BTreeMap<UnitId, (Replica, usize)>,
    /// The step that was said to be finished, in this epoch, and whether it is reduced.
    finished: Option<StepId>,
    reduced: bool,
    /// The first step that a frozen encoder has not reported in this epoch.
    reported: u64,
    epoch: Epoch,
    members: Vec<u32>,
    /// The step from which on nothing was shared out anew: pixels of earlier ones are taken out of their edges.
    anew: StepId,
    /// Pixels of units that are not given here yet.
    early: Vec<(ActorId, Parcel)>,
    due: Vec<(StepId, SaveTo)>,
    /// The time for a patch.
    pace: Duration,
    jitter: f64,
    deadly: Option<ItemId>,
    hungry: Option<ItemId>,
    worked: Duration,
    fuse: Fuse,
}

impl FakeEncoder {
    pub fn new(me: ActorId, script: Script) -> Self {
        Self {
            me,
            frozen: script.is_frozen(me.pool),
            version: script.first_step,
            applied: script.first_step,
            plans: VecDeque::new(),
            to_encode: VecDeque::new(),
            pixels: BTreeMap::new(),
            open: BTreeMap::new(),
            finished: None,
            reduced: false,
            reported: script.first_step,
            epoch: Epoch(0),
            members: Vec::new(),
            anew: StepId(0),
            early: Vec::new(),
            due: Vec::new(),
            pace: script.paces.get(me.index as usize).copied().unwrap_or_default(),
            jitter: script.jitter,
            deadly: script.deadly,
            hungry: script.hungry,
            worked: Duration::ZERO,
            fuse: Fuse::new(me, &script),
        }
    }

    fn encode(&mut self, ports: &mut Ports) -> Result<bool, EngineError> {
        let Some(unit) = self.to_encode.front() else { return Ok(false) };
        let owners: BTreeSet<u32> = unit.items.iter().map(|item| item.owner).collect();
        let here = self.pixels.get(&unit.id).map_or(0, BTreeMap::len);
        // A trained encoder encodes a step with the parameters that all earlier steps have made.
        if here < owners.len() || (!self.frozen && self.version != unit.id.step.0) {
            return Ok(false);
        }
        let unit = self.to_encode.pop_front().expect("looked at above");
        ports.at(Some(unit.id));
        if unit.items.iter().any(|item| Some(item.id) == self.deadly) {
            return Err("out of memory".into());
        }
        if unit.items.iter().any(|item| Some(item.id) == self.hungry) {
            // Written, so that the system must give it.
            let meal = std::hint::black_box(vec![1_u8; 1 << 28]);
            return Err(format!("{} bytes were to be had", meal.len()).into());
        }
        let pixels = self.pixels.remove(&unit.id).unwrap_or_default();
        let patches: usize = pixels.values().map(|parcel| parcel.num_bytes() / 4).sum();
        assert_eq!(patches, unit.num_cells(), "pixels of {}", unit.id);
        let drawn = (mix(unit.id.step.0, u64::from(unit.id.index)) % 2001) as f64 / 1000.0 - 1.0;
        let work = (self.pace * patches as u32).mul_f64(1.0 + self.jitter * drawn);
        std::thread::sleep(work);
        self.worked += work;
        let value = pixels.values().fold(0, |sum, parcel| sum ^ digest(parcel));
        let version = Version(if self.frozen { 0 } else { self.version });
        let rows: Vec<f32> = (0..unit.num_features() as u64).map(|row| (mix(value, row) % 1000) as f32).collect();
        // Two tensors, as DeepStack has.
        let tensor = || Box::new(HostTensor::from_f32(&rows, &[rows.len(), 1]));
        let header = Header { kind: ParcelKind::Features(unit.id), version };
        ports.send(unit.replica.leader(Role::Foundation, 1), Parcel::new(header, vec![tensor(), tensor()]))?;
        if !self.frozen && !unit.id.is_of_evaluation() {
            self.open.insert(unit.id, (unit.replica, rows.len()));
        }
        Ok(true)
    }

    /// Reports for frozen encoders the next step of which everything is sent, and waits for nothing.
    fn report_sent(&mut self, ports: &mut Ports) -> bool {
        let step = StepId(self.reported);
        let is_known = self.plans.iter().any(|plan| plan.step == step);
        let is_open = self.to_encode.iter().any(|unit| unit.id.step == step) || ports.num_unsent_until(step) > 0;
        if !self.frozen || !is_known || is_open {
            return false;
        }
        self.reported += 1;
        self.report(step, ports);
        true
    }

    fn evaluates(&self) -> bool {
        self.plans.front().is_some_and(|plan| plan.purpose.is_evaluation())
    }

    fn report(&mut self, step: StepId, ports: &mut Ports) {
        ports.emit(Event::Reduced(StepReport {
            step,
            epoch: self.epoch,
            grad_square_sum: if self.frozen || self.evaluates() { 0.0 } else { 9.0 },
            timings: Timings { units: std::mem::take(&mut self.worked).as_secs_f64(), ..ports.timings },
            ..StepReport::default()
        }));
    }

    /// Says that the first step is finished once nothing of it is open.
    fn finish(&mut self, ports: &mut Ports) -> bool {
        let Some(step) = self.plans.front().map(|plan| plan.step) else { return false };
        let busy = self.open.keys().chain(self.to_encode.iter().map(|unit| &unit.id)).any(|unit| unit.step == step);
        if busy || self.finished == Some(step) {
            return false;
        }
        self.finished = Some(step);
        match self.evaluates() {
            true => self.report(step, ports),
            false => ports.emit(Event::Finished { step, epoch: self.epoch }),
        }
        true
    }

    fn reduce(&mut self, step: StepId, epoch: Epoch, ports: &mut Ports) {
        if epoch != self.epoch {
            return;
        }
        assert!(self.finished == Some(step) && step.0 == self.version, "told to reduce {step} too early");
        if self.reduced {
            return;
        }
        self.reduced = true;
        self.report(step, ports);
    }

    fn regroup(&mut self, regroup: &Regroup, ports: &mut Ports) -> Result<(), EngineError> {
        if regroup.pool != self.me.pool {
            return Ok(());
        }
        assert!(regroup.epoch > self.epoch && regroup.members.contains(&self.me.index));
        (self.epoch, self.finished, self.reduced) = (regroup.epoch, None, false);
        self.members = regroup.members.clone();
        self.reported = regroup.step.0;
        if self.plans.is_empty() {
            // One that has joined, or had nothing to do.
            self.version = regroup.step.0;
        }
        for plan in &regroup.plans {
            let known = self.plans.iter().any(|old| old.step == plan.step);
            let own = Replica::new(self.me.pool, self.me.index);
            let mine = |unit: &&Unit| unit.encoder == own && (!known || regroup.moved.contains(&unit.id));
            self.to_encode.extend(plan.units.iter().filter(mine).cloned());
            if !known {
                self.plans.push_back(plan.clone());
            }
        }
        self.anew = regroup.plans.last().map_or(self.anew, |plan| StepId(plan.step.0 + 1));
        for parcels in self.pixels.values_mut() {
            let taken = std::mem::take(parcels).into_iter();
            *parcels = taken.map(|(from, parcel)| (from, take_out(parcel))).collect();
        }
        self.to_encode.make_contiguous().sort_by_key(|unit| unit.id);
        let early = std::mem::take(&mut self.early);
        early.into_iter().try_for_each(|(from, parcel)| self.arrive(from, parcel, ports))
    }

    fn close_step(&mut self, step: StepId, ports: &mut Ports) {
        let is_reported = if self.frozen { step.0 < self.reported } else { self.finished == Some(step) };
        assert!(is_reported && step.0 == self.version, "step {step} is decided in turn");
        (self.finished, self.reduced) = (None, false);
        match self.evaluates() {
            true => self.reported = step.0,
            false => self.version += 1,
        }
        self.plans.retain(|plan| plan.step != step);
        ports.emit(Event::Applied { step });
        self.save_due(ports);
    }

    /// The scheduler asks for a save before its step ends, or later.
    fn save_due(&mut self, ports: &mut Ports) {
        let version = self.version;
        for (step, to) in self.due.extract_if(.., |(step, _)| step.0 < version).collect::<Vec<_>>() {
            assert!(self.frozen || self.applied <= step.0 + 1, "what is saved is what the step left");
            let is_first = self.members.first().map_or(self.me.index == 0, |&first| first == self.me.index);
            let name = "encoder.safetensors".to_owned();
            let file = SavedFile { name, bytes: 1, sha256: "00".into(), tensors: vec![] };
            ports.emit(Event::Saved { step, to, files: if is_first { vec![file] } else { vec![] } });
        }
    }
}

impl Engine for FakeEncoder {
    fn command(&mut self, command: Command, ports: &mut Ports) -> Result<(), EngineError> {
        match command {
            Command::Plan(plan) => {
                let own = Replica::new(self.me.pool, self.me.index);
                self.to_encode.extend(plan.units.iter().filter(|unit| unit.encoder == own).cloned());
                self.plans.push_back(plan);
                let early = std::mem::take(&mut self.early);
                return early.into_iter().try_for_each(|(from, parcel)| self.arrive(from, parcel, ports));
            }
            Command::Regroup(regroup) => return self.regroup(&regroup, ports),
            Command::Reduce { step, epoch } => self.reduce(step, epoch, ports),
            Command::Commit(commit) => {
                assert!(commit.clip_scale <= 1.0 && commit.clip_scale > 0.0);
                self.applied = commit.step.0 + 1;
                self.close_step(commit.step, ports);
            }
            Command::Abort { step } => self.close_step(step, ports),
            Command::Save { step, to, .. } => {
                self.due.push((step, to));
                self.save_due(ports);
            }
            other => return Err(format!("an encoder is not told {other:?}").into()),
        }
        Ok(())
    }

    fn arrive(&mut self, from: ActorId, parcel: Parcel, _: &mut Ports) -> Result<(), EngineError> {
        match parcel.header.kind {
            ParcelKind::Items(unit) if !self.to_encode.iter().any(|mine| mine.id == unit) => {
                self.early.push((from, if unit.step < self.anew { take_out(parcel) } else { parcel }));
            }
            ParcelKind::Items(unit) => {
                let parcel = if unit.step < self.anew { take_out(parcel) } else { parcel };
                let before = self.pixels.entry(unit).or_default().insert(from, parcel);
                assert!(before.is_none(), "pixels of {unit} came twice");
            }
            kind @ ParcelKind::Gradient(unit) => {
                let open = self.open.remove(&unit);
                let (replica, rows) = open.ok_or_else(|| format!("{kind:?} for nothing that is open"))?;
                assert_eq!(from, replica.leader(Role::Foundation, 1));
                assert_eq!(parcel.num_bytes(), 2 * rows * 4, "{kind:?}");
            }
            kind => return Err(format!("{kind:?} came to an encoder").into()),
        }
        Ok(())
    }

    fn work(&mut self, ports: &mut Ports) -> Result<Progress, EngineError> {
        self.fuse.burn()?;
        if self.report_sent(ports) {
            return Ok(Progress::Busy);
        }
        let encoded = self.encode(ports)?;
        if !encoded {
            ports.at(None);
        }
        let worked = encoded || (!self.frozen && self.finish(ports));
        Ok(if worked { Progress::Busy } else { Progress::Idle })
    }
}
