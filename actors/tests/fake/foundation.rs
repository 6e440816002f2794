//! A foundation engine: packs in plan order, each as soon as it is whole.

use super::{Fuse, Script, digest, mix};
use loongforge_core::engine::{Engine, EngineError, Ports, Progress};
use loongforge_core::message::*;
use loongforge_core::transport::{Header, HostTensor, Parcel, ParcelKind};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub struct FakeFoundation {
    me: u32,
    frozen_encoder: bool,
    script: Script,
    version: u64,
    plans: VecDeque<Arc<StepPlan>>,
    /// Packs of the first plan that are done, and the sum of their losses.
    num_done: usize,
    loss: f64,
    reported: bool,
    tokens: BTreeMap<PackId, BTreeMap<ActorId, Parcel>>,
    features: BTreeMap<UnitId, Parcel>,
    consumed: BTreeSet<ItemId>,
    fuse: Fuse,
}

impl FakeFoundation {
    pub fn new(me: ActorId, script: Script) -> Self {
        Self {
            me: me.index,
            frozen_encoder: script.frozen,
            version: script.first_step,
            plans: VecDeque::new(),
            num_done: 0,
            loss: 0.0,
            reported: false,
            tokens: BTreeMap::new(),
            features: BTreeMap::new(),
            consumed: BTreeSet::new(),
            fuse: Fuse::new(me, &script),
            script,
        }
    }

    fn compute(&mut self, ports: &mut Ports) -> Result<bool, EngineError> {
        let Some(plan) = self.plans.front().cloned() else { return Ok(false) };
        let Some(pack) = plan.packs_of(self.me).nth(self.num_done) else { return Ok(self.report(&plan, ports)) };
        let owners: BTreeSet<u32> = pack.samples.iter().map(|sample| sample.owner).collect();
        let units: Vec<&Unit> = plan.units_of(pack.id).collect();
        let whole = self.tokens.get(&pack.id).is_some_and(|tokens| tokens.len() == owners.len())
            && units.iter().all(|unit| self.features.contains_key(&unit.id));
        if !whole {
            return Ok(false);
        }
        let tokens = self.tokens.remove(&pack.id).unwrap_or_default();
        let num_tokens: usize = tokens.values().map(|parcel| parcel.num_bytes() / 40).sum();
        assert_eq!(num_tokens, pack.num_tokens());
        let mut value = tokens.values().fold(0, |sum, parcel| sum ^ digest(parcel));
        for unit in units {
            let features = self.features.remove(&unit.id).expect("looked at above");
            let version = if self.frozen_encoder { 0 } else { plan.step.0 };
            assert_eq!(features.header.version, Version(version), "{}", unit.id);
            for item in &unit.items {
                assert!(self.consumed.insert(item.id), "{:?} is consumed twice", item.id);
            }
            value = mix(value, digest(&features));
            let (kind, tensors) = if self.frozen_encoder {
                (ParcelKind::NoGradient(unit.id), vec![])
            } else {
                (ParcelKind::Gradient(unit.id), features.tensors)
            };
            // The activation's memory is free before its gradient is sent.
            drop(features.credit);
            let tensors = tensors.iter().map(|tensor| {
                let mut bytes = vec![0; tensor.meta().num_bytes()];
                tensor.copy_to(&mut bytes);
                let tensor: Box<dyn loongforge_core::transport::Buffer> =
                    Box::new(HostTensor::new(tensor.meta().dtype, &tensor.meta().shape, bytes));
                tensor
            });
            let header = Header { kind, version: Version(version) };
            ports.send(ActorId::encoder(unit.encoder), Parcel::new(header, tensors.collect()))?;
        }
        // Whole numbers, so that the sum does not depend on the number of replicas.
        self.loss += (mix(value, self.version) % 1_000_000) as f64;
        self.num_done += 1;
        Ok(true)
    }

    fn report(&mut self, plan: &StepPlan, ports: &mut Ports) -> bool {
        if self.reported {
            return false;
        }
        self.reported = true;
        let step = plan.step;
        let loss = if self.script.nan_loss.contains(&step.0) { f64::NAN } else { self.loss };
        let samples = plan.packs_of(self.me).flat_map(|pack| &pack.samples);
        let packs = samples.map(|sample| super::seconds(f64::from(sample.num_tokens))).sum();
        let grad_square_sum = if self.script.infinite_gradient.contains(&step.0) { f64::INFINITY } else { 16.0 };
        ports.emit(Event::Reduced(StepReport {
            step,
            loss,
            grad_square_sum,
            routing: None,
            timings: Timings { packs, ..Timings::default() },
        }));
        true
    }

    fn close_step(&mut self, step: StepId, ports: &mut Ports) {
        assert!(self.reported && step.0 == self.version, "step {step} is decided in turn");
        self.plans.pop_front();
        (self.num_done, self.loss, self.reported) = (0, 0.0, false);
        self.version += 1;
        ports.emit(Event::Applied { step });
    }
}

impl Engine for FakeFoundation {
    fn command(&mut self, command: Command, ports: &mut Ports) -> Result<(), EngineError> {
        match command {
            Command::Plan(plan) => self.plans.push_back(plan),
            Command::Commit(commit) => self.close_step(commit.step, ports),
            Command::Abort { step } => self.close_step(step, ports),
            Command::Save { step, .. } => {
                assert_eq!(self.version, step.0 + 1, "saved right after its step");
                let name = format!("model-{}.safetensors", self.me);
                let files = vec![SavedFile { name, bytes: 1, sha256: "00".into(), tensors: vec![] }];
                ports.emit(Event::Saved { step, files });
            }
            other => return Err(format!("a foundation engine is not told {other:?}").into()),
        }
        Ok(())
    }

    fn arrive(&mut self, from: ActorId, parcel: Parcel, _: &mut Ports) -> Result<(), EngineError> {
        match parcel.header.kind {
            ParcelKind::Tokens(pack) => {
                let before = self.tokens.entry(pack).or_default().insert(from, parcel);
                assert!(before.is_none(), "tokens of {pack} came twice");
            }
            ParcelKind::Activation(unit) => {
                assert!(self.features.insert(unit, parcel).is_none(), "features of {unit} came twice");
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
