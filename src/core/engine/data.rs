//! The data actor's engine: reads and measures samples ahead, and sends what a plan asks for.
//!
//! On stop it drops what it has read ahead. A sample is known from `Read` until a plan names it; its content is kept while memory
//! allows, and otherwise read again when the plan arrives: a sample is a pure function of its position.

use super::{Engine, EngineError, Ports, Progress};
use crate::config::Placement;
use crate::data::{ColumnValues, ColumnView, JoinedColumn, Sample, join_column};
use crate::message::{
    Activity, ActorId, Command, Event, Pack, PoolName, Regroup, Role, SampleId, SampleMeta, SkippedSample,
};
use crate::message::{StepPlan, Unit, Version};
use crate::transport::{Buffer, Header, HostTensor, Parcel, ParcelKind};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// Maximum number of parcels that wait for credit before another pack is turned into parcels, since their contents are in memory
/// twice.
const MAX_UNSENT: usize = 64;

/// A source of samples: a pure function of the position.
pub trait SampleSource {
    /// Reads, tokenizes and decodes one sample.
    ///
    /// # Errors
    /// Fails if the sample is unusable; the run skips it.
    fn sample(&self, position: SampleId) -> Result<Sample, SkippedSample>;
}

/// The engine of a data actor, which serves the positions `p` with `p % num_data == index`.
pub struct DataEngine {
    index: u32,
    num_data: u32,
    /// The placement of encoders; if colocated, encoder `i` is in the actor `foundation/i`.
    placement: Placement,
    /// Number of consecutively numbered actors per encoder of each pool; all of them receive its pixels.
    encoder_ranks: BTreeMap<PoolName, u32>,
    samples: Box<dyn SampleSource>,
    windows: VecDeque<Window>,
    /// Plans that are not completely sent, and how many packs of the first one are sent.
    plans: VecDeque<Arc<StepPlan>>,
    num_sent: usize,
    /// Units that were sent and are now assigned to another encoder.
    to_resend: VecDeque<Unit>,
    held: BTreeMap<SampleId, Held>,
    /// Bytes of the sample contents in memory, and their limit.
    num_bytes: u64,
    max_bytes: u64,
}

/// A sample that is measured but not planned.
enum Held {
    Whole(Box<Sample>),
    /// The sample without its content, which did not fit in memory.
    Measured(SampleMeta),
}

/// A `Read` command in progress.
struct Window {
    /// Positions of this engine's share still to be read.
    positions: VecDeque<SampleId>,
    measured: Vec<SampleMeta>,
    bad: Vec<SkippedSample>,
}

impl DataEngine {
    /// Creates data actor `index` of `num_data`. `max_bytes` limits the samples kept in memory until they are planned
    /// (`pools.data.memory`).
    pub fn new(
        index: u32,
        num_data: u32,
        placement: Placement,
        max_bytes: u64,
        samples: Box<dyn SampleSource>,
    ) -> Self {
        Self {
            index,
            num_data,
            placement,
            encoder_ranks: BTreeMap::new(),
            samples,
            windows: VecDeque::new(),
            plans: VecDeque::new(),
            num_sent: 0,
            to_resend: VecDeque::new(),
            held: BTreeMap::new(),
            num_bytes: 0,
            max_bytes,
        }
    }

    /// Sets the number of actors that each encoder is split over, by pool.
    pub fn with_encoder_ranks(self, encoder_ranks: BTreeMap<PoolName, u32>) -> Self {
        Self { encoder_ranks, ..self }
    }

    fn read(&mut self, positions: impl Iterator<Item = SampleId>) {
        let (index, num_data) = (u64::from(self.index), u64::from(self.num_data));
        let positions = positions.filter(|position| position.0 % num_data == index).collect();
        self.windows.push_back(Window { positions, measured: Vec::new(), bad: Vec::new() });
    }

    fn hold(&mut self, sample: Sample) {
        let num_bytes = sample.num_bytes();
        let id = sample.meta.id;
        let held = if self.num_bytes + num_bytes <= self.max_bytes {
            self.num_bytes += num_bytes;
            Held::Whole(Box::new(sample))
        } else {
            Held::Measured(sample.meta)
        };
        // One that was measured before, and not planned.
        if let Some(Held::Whole(before)) = self.held.insert(id, held) {
            self.num_bytes -= before.num_bytes();
        }
    }

    /// Returns the content of a sample whose plan has arrived.
    fn take(&mut self, id: SampleId) -> Result<Sample, EngineError> {
        match self.held.remove(&id) {
            Some(Held::Whole(sample)) => {
                self.num_bytes -= sample.num_bytes();
                Ok(*sample)
            }
            Some(Held::Measured(meta)) => {
                let sample = self.read_again(id)?;
                match sample.meta == meta {
                    true => Ok(sample),
                    false => {
                        Err(format!("sample {id} has changed since it was first read; was a file modified?").into())
                    }
                }
            }
            None => Err(format!("sample {id} is planned but not held by this data actor").into()),
        }
    }

    fn read_again(&mut self, id: SampleId) -> Result<Sample, EngineError> {
        let sample = self.samples.sample(id).map_err(|SkippedSample { source, reason, .. }| {
            format!("{source} was valid when it was first read, but no longer is: {reason}")
        });
        let mut sample = sample?;
        sample.meta.owner = self.index;
        Ok(sample)
    }

    /// Takes plans with units reassigned to other encoders: what was sent to encoders that left is sent again.
    fn regroup(&mut self, regroup: &Regroup) {
        let num_sent = |plan: &StepPlan| match self.plans.iter().position(|old| old.first_pack() == plan.first_pack()) {
            Some(0) => self.num_sent,
            Some(_) => 0,
            None => usize::MAX,
        };
        let units = regroup.plans.iter().flat_map(|plan| &plan.units);
        let was_sent = |unit: &&Unit| {
            let plan = regroup.plans.iter().find(|plan| plan.unit(unit.id).is_some());
            let place = |plan: &StepPlan| plan.packs.iter().position(|pack| pack.id == unit.pack);
            plan.is_some_and(|plan| place(plan).is_some_and(|place| place < num_sent(plan)))
        };
        let moved = units.filter(|unit| regroup.moved.contains(&unit.id)).filter(was_sent).cloned();
        let moved: Vec<Unit> = moved.collect();
        // A unit may move more than once.
        let is_old = |unit: &Unit| {
            let mut newer = regroup.plans.iter().filter_map(|plan| plan.unit(unit.id));
            newer.any(|newer| newer.id == unit.id && newer.encoder != unit.encoder)
        };
        self.to_resend.retain(|unit| !is_old(unit));
        self.to_resend.extend(moved);
        for plan in &mut self.plans {
            if let Some(newer) = regroup.plans.iter().find(|newer| newer.first_pack() == plan.first_pack()) {
                *plan = newer.clone();
            }
        }
    }

    /// Sends the items of the next reassigned unit. Returns whether there was one.
    fn send_again(&mut self, ports: &mut Ports) -> Result<bool, EngineError> {
        let Some(unit) = self.to_resend.pop_front() else { return Ok(false) };
        let index = self.index;
        let mut mine = BTreeMap::new();
        for item in unit.items.iter().filter(|item| item.owner == index) {
            if let Entry::Vacant(entry) = mine.entry(item.id.sample) {
                entry.insert(self.read_again(item.id.sample)?);
            }
        }
        self.send_items(&unit, &mine, ports)?;
        Ok(true)
    }

    /// Sends the next planned pack. Returns whether there was one, and few enough parcels wait for credit.
    fn send_next(&mut self, ports: &mut Ports) -> Result<bool, EngineError> {
        // Whoever waits for a pack is sent it before any later one, so what waits for credit always moves on.
        if ports.num_unsent() > MAX_UNSENT {
            return Ok(false);
        }
        let Some(plan) = self.plans.front().cloned() else { return Ok(false) };
        let Some(pack) = plan.packs.get(self.num_sent) else {
            self.plans.pop_front();
            self.num_sent = 0;
            return Ok(true);
        };
        self.num_sent += 1;
        let mut mine = BTreeMap::new();
        let index = self.index;
        for sample in pack.samples.iter().filter(|sample| sample.owner == index) {
            mine.insert(sample.id, self.take(sample.id)?);
        }
        // Items first: the encoder works on them while the foundation is busy with the pack before.
        for unit in plan.units_of(pack.id) {
            self.send_items(unit, &mine, ports)?;
        }
        self.send_columns(pack, plan.leader(pack.replica), &mine, ports)?;
        Ok(true)
    }

    fn send_items(
        &self,
        unit: &Unit,
        samples: &BTreeMap<SampleId, Sample>,
        ports: &mut Ports,
    ) -> Result<(), EngineError> {
        if unit.is_skipped() {
            return Ok(());
        }
        let (mut values, mut num_rows) = (Vec::new(), 0);
        for item in unit.items.iter().filter(|item| item.owner == self.index) {
            let media = &samples[&item.id.sample].media[item.id.index as usize];
            values.extend_from_slice(&media.pixels);
            num_rows += media.grid.num_cells();
        }
        if num_rows == 0 {
            return Ok(());
        }
        let tensor = HostTensor::from_f32(&values, &[num_rows, values.len() / num_rows]);
        let kind = ParcelKind::Items(unit.id);
        if self.placement == Placement::Colocated {
            return ports.send(ActorId::foundation(unit.encoder.index), parcel(kind, vec![Box::new(tensor)]));
        }
        let ranks = self.encoder_ranks.get(&unit.encoder.pool).copied().unwrap_or(1);
        let first = unit.encoder.leader(Role::Encoder, ranks);
        (first.index..first.index + ranks)
            .try_for_each(|index| ports.send(ActorId { index, ..first }, parcel(kind, vec![Box::new(tensor.clone())])))
    }

    fn send_columns(
        &self,
        pack: &Pack,
        leader: ActorId,
        samples: &BTreeMap<SampleId, Sample>,
        ports: &mut Ports,
    ) -> Result<(), EngineError> {
        let mine: Vec<&Sample> = pack.samples.iter().filter_map(|sample| samples.get(&sample.id)).collect();
        let Some(first) = mine.first() else { return Ok(()) };
        let num_columns = first.all_columns().count();
        if num_columns == 0 {
            return Ok(());
        }
        let mut columns: Vec<Vec<(SampleId, ColumnView<'_>)>> = vec![Vec::with_capacity(mine.len()); num_columns];
        for sample in &mine {
            let found = sample.all_columns().count();
            if found != num_columns {
                let (id, other) = (sample.meta.id, first.meta.id);
                return Err(format!("sample {id} has {found} columns, but sample {other} has {num_columns}").into());
            }
            columns.iter_mut().zip(sample.all_columns()).for_each(|(column, view)| column.push((sample.meta.id, view)));
        }
        let tensor = |column: &Vec<(SampleId, ColumnView<'_>)>| -> Result<Box<dyn Buffer>, EngineError> {
            let JoinedColumn { shape, values } = join_column(column)?;
            Ok(Box::new(match values {
                ColumnValues::F32(values) => HostTensor::from_f32(&values, &shape),
                ColumnValues::I64(values) => HostTensor::from_i64(&values, &shape),
            }))
        };
        let tensors = columns.iter().map(tensor).collect::<Result<_, _>>()?;
        ports.send(leader, parcel(ParcelKind::Columns(pack.id), tensors))
    }
}

fn parcel(kind: ParcelKind, tensors: Vec<Box<dyn Buffer>>) -> Parcel {
    Parcel::new(Header { kind, version: Version(0) }, tensors)
}

impl Engine for DataEngine {
    fn command(&mut self, command: Command, _ports: &mut Ports) -> Result<(), EngineError> {
        match command {
            Command::Read { from, until } => self.read((from.0..until.0).map(SampleId)),
            Command::ReadAgain { positions } => self.read(positions.into_iter()),
            Command::Plan(plan) => self.plans.push_back(plan),
            Command::Regroup(regroup) => self.regroup(&regroup),
            other => return Err(format!("a data engine cannot take {other:?}").into()),
        }
        Ok(())
    }

    fn arrive(&mut self, from: ActorId, parcel: Parcel, _ports: &mut Ports) -> Result<(), EngineError> {
        Err(format!("{from} sent {parcel:?} to a data engine").into())
    }

    /// Sends one pack, or otherwise reads one sample.
    fn work(&mut self, ports: &mut Ports) -> Result<Progress, EngineError> {
        let start = Instant::now();
        let step = self.plans.front().map(|plan| (plan.step, None));
        if self.send_again(ports)? || self.send_next(ports)? {
            ports.trace.span(Activity::Send, step, start);
            return Ok(Progress::Busy);
        }
        let Some(window) = self.windows.front_mut() else { return Ok(Progress::Idle) };
        let Some(position) = window.positions.pop_front() else {
            let window = self.windows.pop_front().expect("it is the first");
            ports.emit(Event::Measured { samples: window.measured, bad: window.bad });
            return Ok(Progress::Busy);
        };
        match self.samples.sample(position) {
            Ok(mut sample) => {
                sample.meta.owner = self.index;
                window.measured.push(sample.meta.clone());
                self.hold(sample);
            }
            Err(bad) => window.bad.push(bad),
        }
        ports.trace.span(Activity::Read, None, start);
        Ok(Progress::Busy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Media, SampleColumn};
    use crate::message::{Grid, ItemId, ItemMeta, Lane, PackId, Replica, StepId, Tower, UnitId, UnitItem};
    use crate::transport::{Edge, LocalEdge, Mail, Mailbox};

    struct Fake;

    impl SampleSource for Fake {
        fn sample(&self, position: SampleId) -> Result<Sample, SkippedSample> {
            if position.0 == 3 {
                return Err(SkippedSample {
                    id: position,
                    source: "a.jsonl:4".into(),
                    reason: "no picture".into(),
                    too_long: false,
                });
            }
            let grid = Grid { t: 1, h: 2, w: 2 };
            let items = vec![ItemMeta { tower: Tower::Vision, grid, num_features: 1 }];
            let meta = SampleMeta { items, ..SampleMeta::of_tokens(position, 2, 1) };
            let value = position.0 as i64;
            Ok(Sample {
                meta,
                input_ids: vec![value, value + 100],
                position_ids: vec![0.0, 1.0, 10.0, 11.0, 20.0, 21.0],
                targets: vec![-100, value],
                columns: Vec::new(),
                media: vec![Media { tower: Tower::Vision, grid, num_features: 1, pixels: vec![value as f32; 12] }],
                num_sources: 1,
            }
            .with_columns(vec![SampleColumn {
                name: "actions".into(),
                before: vec![],
                rows: 1,
                after: vec![2],
                values: ColumnValues::F32(vec![0.5, value as f32]),
            }]))
        }
    }

    fn tensor(parcel: &Parcel, index: usize) -> (Vec<usize>, Vec<u8>) {
        let buffer = &parcel.tensors[index];
        (buffer.meta().shape, buffer.bytes().unwrap().to_vec())
    }

    #[test]
    fn its_share_is_measured_and_sent_as_planned() {
        // One sample takes 144 bytes: all, one and none of two are kept.
        for (max_bytes, num_kept) in [(1000, 2), (200, 1), (0, 0)] {
            measured_and_sent(max_bytes, num_kept);
        }
    }

    fn measured_and_sent(max_bytes: u64, num_kept: usize) {
        let (data, encoder, foundation) = (Mailbox::new(0, 1), Mailbox::new(1, 1), Mailbox::new(1, 1));
        let edge = |to: &Mailbox| {
            Box::new(LocalEdge::new(ActorId::data(1), data.sender(), to.sender(), 4096)) as Box<dyn Edge>
        };
        let edges =
            BTreeMap::from([(ActorId::encoder(2), edge(&encoder)), (ActorId::foundation(0), edge(&foundation))]);
        let (events, told) = flume::bounded(8);
        let mut ports = Ports::new(ActorId::data(1), events, edges);
        let mut engine = DataEngine::new(1, 2, Placement::Separate, max_bytes, Box::new(Fake));
        engine.command(Command::Read { from: SampleId(0), until: SampleId(6) }, &mut ports).unwrap();
        while engine.work(&mut ports).unwrap() == Progress::Busy {}
        let is_kept = |held: &&Held| matches!(held, Held::Whole(_));
        assert_eq!((engine.held.len(), engine.held.values().filter(is_kept).count()), (2, num_kept));
        let Event::Measured { samples, bad } = told.try_recv().unwrap() else { panic!("measured") };
        assert_eq!(samples.iter().map(|sample| (sample.id.0, sample.owner)).collect::<Vec<_>>(), [(1, 1), (5, 1)]);
        assert_eq!(bad[0].id, SampleId(3));

        let (pack, unit) = (PackId { step: StepId(0), index: 0 }, UnitId { step: StepId(0), index: 0 });
        let other = SampleMeta { id: SampleId(0), owner: 0, ..samples[0].clone() };
        let planned = vec![samples[1].clone(), other, samples[0].clone()];
        let item = |sample: &SampleMeta| UnitItem {
            id: ItemId { sample: sample.id, index: 0 },
            owner: sample.owner,
            meta: sample.items[0],
        };
        let items = planned.iter().map(item).collect();
        let plan = StepPlan {
            step: StepId(0),
            purpose: Default::default(),
            cursor: SampleId(6),
            learning_rate: 0.1,
            num_targets: 3,
            replica_ranks: BTreeMap::new(),
            packs: vec![Pack { id: pack, replica: Replica::foundation(0), samples: planned }],
            units: vec![Unit {
                id: unit,
                lane: Lane(0),
                encoder: Replica::encoder(2),
                pack,
                replica: Replica::foundation(0),
                items,
            }],
        };
        engine.command(Command::Plan(plan.into()), &mut ports).unwrap();
        while engine.work(&mut ports).unwrap() == Progress::Busy {}
        let Some(Mail::Parcel { parcel, .. }) = encoder.try_recv() else { panic!("pixels") };
        let (shape, bytes) = tensor(&parcel, 0);
        assert_eq!(shape, [8, 3]);
        assert_eq!((&bytes[..4], &bytes[48..52]), (&5f32.to_ne_bytes()[..], &1f32.to_ne_bytes()[..]));
        let Some(Mail::Parcel { parcel, .. }) = foundation.try_recv() else { panic!("tokens") };
        assert_eq!(parcel.tensors.len(), 4);
        let actions = tensor(&parcel, 3);
        let (shape, bytes) = tensor(&parcel, 1);
        assert_eq!(shape, [3, 4]);
        let positions: Vec<f32> = bytes.chunks(4).map(|value| f32::from_ne_bytes(value.try_into().unwrap())).collect();
        assert_eq!(positions, [0.0, 1.0, 0.0, 1.0, 10.0, 11.0, 10.0, 11.0, 20.0, 21.0, 20.0, 21.0]);
        let (shape, bytes) = actions;
        assert_eq!(
            (shape, bytes),
            (vec![2, 2], [0.5f32, 5.0, 0.5, 1.0].iter().flat_map(|x| x.to_ne_bytes()).collect())
        );
        assert_eq!(samples[0].column_bytes, 2 * 28 + 8);
        assert!(engine.held.is_empty() && engine.num_bytes == 0);
    }
}
