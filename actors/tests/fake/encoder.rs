//! An encoder engine: units in plan order, gradients in any order, one report a step.

use super::{Fuse, Script, digest, mix};
use loongforge_core::engine::{Engine, EngineError, Ports, Progress};
use loongforge_core::message::*;
use loongforge_core::transport::{Header, HostTensor, Parcel, ParcelKind};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub struct FakeEncoder {
    me: u32,
    frozen: bool,
    version: u64,
    plans: VecDeque<Arc<StepPlan>>,
    /// Units of the first plans that are still to be encoded.
    to_encode: VecDeque<Unit>,
    pixels: BTreeMap<UnitId, BTreeMap<ActorId, Parcel>>,
    /// Encoded; waiting for a gradient, or for word that there is none.
    open: BTreeMap<UnitId, (u32, usize)>,
    reported: BTreeSet<StepId>,
    fuse: Fuse,
}

impl FakeEncoder {
    pub fn new(me: ActorId, script: Script) -> Self {
        Self {
            me: me.index,
            frozen: script.frozen,
            version: script.first_step,
            plans: VecDeque::new(),
            to_encode: VecDeque::new(),
            pixels: BTreeMap::new(),
            open: BTreeMap::new(),
            reported: BTreeSet::new(),
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
        let pixels = self.pixels.remove(&unit.id).unwrap_or_default();
        let patches: usize = pixels.values().map(|parcel| parcel.num_bytes() / 4).sum();
        assert_eq!(patches, unit.num_patches(), "pixels of {}", unit.id);
        let value = pixels.values().fold(0, |sum, parcel| sum ^ digest(parcel));
        let version = Version(if self.frozen { 0 } else { self.version });
        let rows: Vec<f32> = (0..unit.num_features() as u64).map(|row| (mix(value, row) % 1000) as f32).collect();
        // Two tensors, as DeepStack has.
        let tensor = || Box::new(HostTensor::from_f32(&rows, &[rows.len(), 1]));
        let header = Header { kind: ParcelKind::Activation(unit.id), version };
        ports.send(ActorId::foundation(unit.replica), Parcel::new(header, vec![tensor(), tensor()]))?;
        self.open.insert(unit.id, (unit.replica, rows.len()));
        Ok(true)
    }

    /// Reports the oldest step once nothing of it is open.
    fn report(&mut self, ports: &mut Ports) -> bool {
        let Some(plan) = self.plans.iter().find(|plan| !self.reported.contains(&plan.step)) else { return false };
        let step = plan.step;
        let busy = self.open.keys().chain(self.to_encode.iter().map(|unit| &unit.id)).any(|unit| unit.step == step);
        if busy || (!self.frozen && self.version != step.0) {
            return false;
        }
        self.reported.insert(step);
        let grad_square_sum = if self.frozen { 0.0 } else { 9.0 };
        ports.emit(Event::Reduced(StepReport {
            step,
            loss: 0.0,
            grad_square_sum,
            routing: None,
            timings: ports.timings,
        }));
        true
    }

    fn close_step(&mut self, step: StepId, ports: &mut Ports) {
        assert!(self.reported.remove(&step) && step.0 == self.version, "step {step} is decided in turn");
        self.plans.retain(|plan| plan.step != step);
        self.version += 1;
        ports.emit(Event::Applied { step });
    }
}

impl Engine for FakeEncoder {
    fn command(&mut self, command: Command, ports: &mut Ports) -> Result<(), EngineError> {
        match command {
            Command::Plan(plan) => {
                self.to_encode.extend(plan.units.iter().filter(|unit| unit.encoder == self.me).cloned());
                self.plans.push_back(plan);
            }
            Command::Commit(commit) => {
                assert!(commit.clip_scale <= 1.0 && commit.clip_scale > 0.0);
                self.close_step(commit.step, ports);
            }
            Command::Abort { step } => self.close_step(step, ports),
            Command::Save { step, .. } => {
                assert_eq!(self.version, step.0 + 1, "saved right after its step");
                ports.emit(Event::Saved { step, files: vec![] });
            }
            other => return Err(format!("an encoder is not told {other:?}").into()),
        }
        Ok(())
    }

    fn arrive(&mut self, from: ActorId, parcel: Parcel, _: &mut Ports) -> Result<(), EngineError> {
        match parcel.header.kind {
            ParcelKind::Pixels(unit) => {
                let before = self.pixels.entry(unit).or_default().insert(from, parcel);
                assert!(before.is_none(), "pixels of {unit} came twice");
            }
            kind @ (ParcelKind::Gradient(unit) | ParcelKind::NoGradient(unit)) => {
                let open = self.open.remove(&unit);
                let (replica, rows) = open.ok_or_else(|| format!("{kind:?} for nothing that is open"))?;
                assert_eq!(from, ActorId::foundation(replica));
                let wanted = if self.frozen { 0 } else { 2 * rows * 4 };
                assert_eq!(parcel.num_bytes(), wanted, "{kind:?}");
            }
            kind => return Err(format!("{kind:?} came to an encoder").into()),
        }
        Ok(())
    }

    fn work(&mut self, ports: &mut Ports) -> Result<Progress, EngineError> {
        self.fuse.burn()?;
        let worked = self.encode(ports)? || self.report(ports);
        Ok(if worked { Progress::Busy } else { Progress::Idle })
    }
}
