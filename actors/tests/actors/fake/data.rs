//! A data engine over an endless stream of invented samples.

use super::{Fuse, REFERENCE, Script, mix};
use loongforge_core::engine::{Engine, EngineError, Ports, Progress};
use loongforge_core::message::*;
use loongforge_core::transport::{Dtype, Header, HostTensor, Parcel, ParcelKind};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

pub struct FakeData {
    me: u32,
    num_data: u32,
    script: Script,
    reads: VecDeque<Vec<u64>>,
    plans: VecDeque<Arc<StepPlan>>,
    to_resend: VecDeque<Unit>,
    /// Samples measured and not sent yet.
    held: BTreeSet<SampleId>,
    fuse: Fuse,
}

/// Returns whether the sample is bad, as about one in nine is.
pub fn is_bad(position: u64) -> bool {
    mix(position, 1).is_multiple_of(9)
}

/// Returns the sample at a position; about a third have no images.
pub fn sample(position: u64, num_data: u32) -> SampleMeta {
    sample_of(position, num_data, &Script::default())
}

/// Returns the sample of a run where every second item is a recording, or samples have routes, or a column of the reference's.
pub fn sample_of(position: u64, num_data: u32, script: &Script) -> SampleMeta {
    let item = |index| {
        let grid =
            Grid { t: 1, h: 1 + (mix(position, index) % 4) as u32, w: 1 + (mix(position, index + 99) % 6) as u32 };
        let tower =
            if script.hears && mix(position, index + 7).is_multiple_of(2) { Tower::Audio } else { Tower::Vision };
        ItemMeta { tower, grid, num_features: grid.num_cells().div_ceil(4) as u32 }
    };
    let mut items: Vec<ItemMeta> = (0..mix(position, 2) % 4).map(|index| item(10 + index)).collect();
    let text = 2 + (mix(position, 3) % 8) as u32;
    let num_tokens = text + items.iter().map(|item| item.num_features).sum::<u32>();
    if script.scored {
        items.push(ItemMeta { tower: REFERENCE, grid: Grid { t: num_tokens, h: 1, w: 1 }, num_features: num_tokens });
    }
    // Every held-out sample can be a prompt.
    let has_target = script.noised || SampleId(position).as_held_out().is_some();
    let target = has_target.then(|| Target { grid: Grid { t: 1, h: 1, w: num_tokens }, sigma: Sigma::default() });
    SampleMeta {
        target,
        owner: (position % u64::from(num_data)) as u32,
        route: (position % u64::from(script.routes.max(1))) as u32,
        items,
        ..SampleMeta::of_tokens(SampleId(position), num_tokens, text / 2)
    }
}

impl FakeData {
    pub fn new(me: ActorId, num_data: u32, script: Script) -> Self {
        let fuse = Fuse::new(me, &script);
        Self {
            me: me.index,
            num_data,
            script,
            reads: VecDeque::new(),
            plans: VecDeque::new(),
            to_resend: VecDeque::new(),
            held: BTreeSet::new(),
            fuse,
        }
    }

    fn measure(&mut self, positions: Vec<u64>) -> Event {
        let (mut samples, mut bad) = (Vec::new(), Vec::new());
        for position in
            positions.into_iter().filter(|position| position % u64::from(self.num_data) == u64::from(self.me))
        {
            let id = SampleId(position);
            if is_bad(position) {
                let source = format!("train.jsonl:{position}");
                bad.push(SkippedSample { id, source, reason: "not an image".into(), too_long: false });
            } else {
                assert!(self.held.insert(id), "read twice");
                samples.push(sample_of(position, self.num_data, &self.script));
            }
        }
        Event::Measured { samples, bad }
    }

    fn send(&mut self, plan: &StepPlan, ports: &mut Ports) -> Result<(), EngineError> {
        plan.units.iter().try_for_each(|unit| self.send_pixels(unit, ports))?;
        for pack in &plan.packs {
            let mine: Vec<_> = pack.samples.iter().filter(|sample| sample.owner == self.me).collect();
            for sample in &mine {
                assert!(self.held.remove(&sample.id), "sample {} is planned twice or was never measured", sample.id);
            }
            let num_tokens: usize = mine.iter().map(|sample| sample.num_tokens as usize).sum();
            if num_tokens > 0 {
                let ids: Vec<i64> =
                    mine.iter().flat_map(|s| (0..s.num_tokens).map(|i| mix(s.id.0, i.into()) as i64)).collect();
                let tensors: Vec<Box<dyn loongforge_core::transport::Buffer>> = vec![
                    Box::new(HostTensor::from_i64(&ids, &[num_tokens])),
                    Box::new(HostTensor::from_f32(&vec![0.0; 3 * num_tokens], &[3, num_tokens])),
                    Box::new(HostTensor::from_i64(&vec![0; num_tokens], &[num_tokens])),
                ];
                let header = Header { kind: ParcelKind::Columns(pack.id), version: Version(0) };
                ports.send(pack.replica.leader(Role::Foundation, 1), Parcel::new(header, tensors))?;
            }
        }
        Ok(())
    }
}

impl FakeData {
    fn send_pixels(&self, unit: &Unit, ports: &mut Ports) -> Result<(), EngineError> {
        let mine = unit.items.iter().filter(|item| item.owner == self.me && !unit.is_skipped());
        let patches: Vec<u8> = mine.flat_map(pixels).collect();
        if patches.is_empty() {
            return Ok(());
        }
        let tensor = HostTensor::new(Dtype::F32, &[patches.len() / 4, 1], &patches);
        let header = Header { kind: ParcelKind::Items(unit.id), version: Version(0) };
        ports.send(unit.encoder.leader(Role::Encoder, 1), Parcel::new(header, vec![Box::new(tensor)]))
    }

    fn regroup(&mut self, regroup: &Regroup) {
        for plan in &regroup.plans {
            match self.plans.iter_mut().find(|old| old.step == plan.step) {
                Some(old) => *old = plan.clone(),
                None => {
                    let moved = |unit: &&Unit| regroup.moved.contains(&unit.id);
                    self.to_resend.extend(plan.units.iter().filter(moved).cloned());
                }
            }
        }
    }
}

/// Returns four bytes a patch, a function of the item.
fn pixels(item: &UnitItem) -> Vec<u8> {
    (0..item.meta.grid.num_cells() as u64)
        .flat_map(|patch| (mix(item.id.sample.0 ^ u64::from(item.id.index) << 40, patch) as u32).to_ne_bytes())
        .collect()
}

impl Engine for FakeData {
    fn command(&mut self, command: Command, _: &mut Ports) -> Result<(), EngineError> {
        match command {
            Command::Read { from, until } => self.reads.push_back((from.0..until.0).collect()),
            Command::ReadAgain { positions } => {
                self.reads.push_back(positions.into_iter().map(|position| position.0).collect());
            }
            Command::Plan(plan) => self.plans.push_back(plan),
            Command::Regroup(regroup) => self.regroup(&regroup),
            other => return Err(format!("a data engine is not told {other:?}").into()),
        }
        Ok(())
    }

    fn arrive(&mut self, from: ActorId, parcel: Parcel, _: &mut Ports) -> Result<(), EngineError> {
        Err(format!("{from} sent {parcel:?} to a data engine").into())
    }

    fn work(&mut self, ports: &mut Ports) -> Result<Progress, EngineError> {
        self.fuse.burn()?;
        if let Some(unit) = self.to_resend.pop_front() {
            self.send_pixels(&unit, ports)?;
        } else if let Some(plan) = self.plans.pop_front() {
            self.send(&plan, ports)?;
        } else if let Some(positions) = self.reads.pop_front() {
            let event = self.measure(positions);
            ports.emit(event);
        } else {
            return Ok(Progress::Idle);
        }
        Ok(Progress::Busy)
    }
}
