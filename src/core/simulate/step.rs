//! One planned step as indices: who computes what, and what each pack and unit still waits for.

use super::actors::Sending;
use super::{Costs, SimSpec};
use crate::message::{Lane, PoolName, Replica, StepPlan, Unit, UnitItem};
use crate::schedule::ByTower;
use std::collections::BTreeMap;
use std::sync::Arc;

/// No unit.
pub(super) const NONE: u32 = u32::MAX;

/// Lists of indices by owner, in one piece of memory.
#[derive(Debug, PartialEq)]
pub(super) struct Lists {
    starts: Vec<u32>,
    entries: Vec<u32>,
}

impl Lists {
    /// Deals out `0..owners.len()`, keeping the order.
    fn new(num_owners: usize, owners: impl Iterator<Item = u32> + Clone) -> Self {
        let mut starts = vec![0; num_owners + 1];
        owners.clone().for_each(|owner| starts[owner as usize + 1] += 1);
        for owner in 0..num_owners {
            starts[owner + 1] += starts[owner];
        }
        let mut next = starts.clone();
        let mut entries = vec![0; *starts.last().unwrap_or(&0) as usize];
        for (index, owner) in owners.enumerate() {
            let place = &mut next[owner as usize];
            entries[*place as usize] = index as u32;
            *place += 1;
        }
        Self { starts, entries }
    }

    /// Returns the entries of an owner.
    pub fn of(&self, owner: u32) -> &[u32] {
        &self.entries[self.starts[owner as usize] as usize..self.starts[owner as usize + 1] as usize]
    }
}

/// The state of a unit, all in one place, since there are tens of thousands of them.
#[derive(Debug, PartialEq)]
pub(super) struct UnitState {
    /// Forward and backward, and the share of the forward.
    pub seconds: f64,
    pub forward: f64,
    pub feature_bytes: u64,
    pub encoder: u32,
    pub replica: u32,
    pub pack: u32,
    /// Parcels that have not come.
    pub pixels_missing: u32,
    /// The next unit of the same lane, and whether all before this one are done.
    pub lane_next: u32,
    /// The next unit that goes from the same encoder to the same replica.
    pub order_next: u32,
    pub lane_turn: bool,
    /// True if all before it are encoded.
    pub order_turn: bool,
    /// True if the foundation has its features and still needs them.
    pub held: bool,
    /// True if its gradient has come.
    pub returned: bool,
}

/// The state of a pack.
#[derive(Debug, PartialEq)]
pub(super) struct PackState {
    /// Forward and backward.
    pub seconds: f64,
    pub replica: u32,
    pub num_tokens: u32,
    /// Parcels of tokens and units of features that have not come.
    pub tokens_missing: u32,
    pub features_missing: u32,
    /// The number of both that have not been sent, and when the last of the others is there.
    pub to_be_sent: u32,
    pub last_arrival: f64,
    /// The first of its units, which follow one another.
    pub first_unit: u32,
    pub num_units: u32,
}

/// A step between its plan and its end.
#[derive(Debug, PartialEq)]
pub(super) struct Step {
    pub units: Vec<UnitState>,
    pub packs: Vec<PackState>,
    pub packs_of_replica: Lists,
    /// Units that are not encoded, and units that have not come back, by encoder.
    pub units_to_encode: Vec<u32>,
    pub units_open: Vec<u32>,
    /// The parcels that each data actor sends, in order.
    pub sendings: Vec<Vec<Sending>>,
    /// Patches of all units.
    pub patches: f64,
    pub pixel_bytes: f64,
    /// The plan that the step was made of, once it is computed, so that it is thrown away by the same thread as the step.
    pub plan: Option<Arc<StepPlan>>,
}

impl Step {
    /// Makes a step of its plan.
    pub fn new(plan: &StepPlan, of: &Sizes) -> Self {
        let mut step = Self {
            units: Vec::with_capacity(plan.units.len()),
            packs: Vec::with_capacity(plan.packs.len()),
            packs_of_replica: Lists::new(of.num_replicas, plan.packs.iter().map(|pack| of.replica(pack.replica))),
            units_to_encode: vec![0; of.num_encoders],
            units_open: vec![0; of.num_encoders],
            sendings: vec![Vec::new(); of.num_data],
            patches: 0.0,
            pixel_bytes: 0.0,
            plan: None,
        };
        let mut units = plan.units.iter().peekable();
        let mut owners: Vec<(u32, u64)> = Vec::new();
        // Packs are numbered within their step in the order of the plan, and units follow in the order of their packs.
        for (pack, index) in plan.packs.iter().zip(0..) {
            let first_unit = step.units.len() as u32;
            while let Some(unit) = units.next_if(|unit| unit.pack.index == index) {
                step.add_unit(unit, of, &mut owners);
            }
            let samples = pack.samples.iter();
            gather(&mut owners, samples.map(|sample| (sample.owner, u64::from(sample.column_bytes))));
            step.send(&owners, Sending { is_pixels: false, index, to: of.replica(pack.replica), bytes: 0 });
            let num_units = step.units.len() as u32 - first_unit;
            step.packs.push(PackState {
                seconds: of.costs.foundation.pack(pack),
                replica: of.replica(pack.replica),
                num_tokens: pack.num_tokens() as u32,
                tokens_missing: owners.len() as u32,
                features_missing: num_units,
                to_be_sent: owners.len() as u32 + num_units,
                last_arrival: 0.0,
                first_unit,
                num_units,
            });
        }
        step.chain_units(&plan.units);
        step
    }

    /// Adds a unit in the order in which the data engine sends: pack by pack, pixels first, one parcel for each unit or
    /// pack and owner.
    fn add_unit(&mut self, unit: &Unit, of: &Sizes, owners: &mut Vec<(u32, u64)>) {
        let patches = |item: &UnitItem| item.meta.grid.num_cells() as u64;
        let bytes = of.bytes_per_patch.of(unit.tower());
        gather(owners, unit.items.iter().map(|item| (item.owner, patches(item) * bytes)));
        self.pixel_bytes += (unit.num_cells() as u64 * bytes) as f64;
        let (index, encoder) = (self.units.len() as u32, of.encoder(unit.encoder));
        self.send(owners, Sending { is_pixels: true, index, to: encoder, bytes: 0 });
        self.patches += unit.num_cells() as f64;
        self.units_to_encode[encoder as usize] += 1;
        self.units_open[encoder as usize] += 1;
        self.units.push(UnitState {
            seconds: of.costs.unit(unit),
            forward: of.costs.tower(unit.tower()).forward,
            feature_bytes: unit.num_features() as u64 * of.bytes_per_feature.of(unit.tower()),
            encoder,
            replica: of.replica(unit.replica),
            pack: unit.pack.index,
            pixels_missing: owners.len() as u32,
            lane_next: NONE,
            order_next: NONE,
            lane_turn: false,
            order_turn: false,
            held: false,
            returned: false,
        });
    }

    fn send(&mut self, owners: &[(u32, u64)], sending: Sending) {
        for &(owner, bytes) in owners {
            self.sendings[owner as usize].push(Sending { bytes, ..sending });
        }
    }

    fn chain_units(&mut self, units: &[Unit]) {
        let mut last: BTreeMap<(PoolName, Lane), u32> = BTreeMap::new();
        // Of each encoder, the last unit to each replica: few, since a replica has few packs.
        let mut last_between: Vec<Vec<(u32, u32)>> = vec![Vec::new(); self.units_open.len()];
        for (unit, here) in units.iter().zip(0..) {
            match last.insert((unit.encoder.pool, unit.lane), here) {
                None => self.units[here as usize].lane_turn = true,
                Some(before) => self.units[before as usize].lane_next = here,
            }
            let UnitState { encoder, replica: to, .. } = self.units[here as usize];
            let between = &mut last_between[encoder as usize];
            match between.iter_mut().find(|(replica, _)| *replica == to) {
                None => {
                    between.push((to, here));
                    self.units[here as usize].order_turn = true;
                }
                Some((_, last)) => {
                    let before = std::mem::replace(last, here);
                    self.units[before as usize].order_next = here;
                }
            }
        }
    }

    /// Returns the units of a replica, pack by pack.
    pub fn units_of_replica(&self, replica: u32) -> impl Iterator<Item = &UnitState> {
        self.packs_of_replica.of(replica).iter().flat_map(|&pack| {
            let PackState { first_unit, num_units, .. } = self.packs[pack as usize];
            &self.units[first_unit as usize..(first_unit + num_units) as usize]
        })
    }

    /// Returns whether a pack has all of its tokens and features.
    pub fn is_whole(&self, pack: u32) -> bool {
        let pack = &self.packs[pack as usize];
        pack.tokens_missing == 0 && pack.features_missing == 0
    }
}

/// The sizes of the run that a step is one of.
pub(super) struct Sizes {
    num_data: usize,
    num_encoders: usize,
    /// The number of the first encoder of each pool: encoders are numbered through.
    first_encoders: Vec<(PoolName, u32)>,
    num_replicas: usize,
    /// The number of the first replica of each foundation pool, as of encoders.
    first_replicas: Vec<(PoolName, u32)>,
    bytes_per_patch: ByTower,
    bytes_per_feature: ByTower,
    costs: Costs,
}

impl Sizes {
    /// Counts the actors of a simulation.
    pub fn new(spec: &SimSpec) -> Self {
        let (pools, plan) = (&spec.coordinator.pools, &spec.coordinator.plan);
        let mut num_encoders = 0;
        let first_encoders = spec.encoders().map(|(pool, replicas)| {
            num_encoders += replicas;
            (pool, num_encoders - replicas)
        });
        Self {
            first_encoders: first_encoders.collect(),
            num_data: pools.data as usize,
            num_encoders: num_encoders as usize,
            num_replicas: pools.num_foundations() as usize,
            first_replicas: pools
                .foundations
                .iter()
                .scan(0, |first, pool| {
                    *first += pool.actors;
                    Some((pool.name, *first - pool.actors))
                })
                .collect(),
            bytes_per_patch: plan.shape.bytes_per_patch,
            bytes_per_feature: plan.shape.bytes_per_feature,
            costs: spec.costs.clone(),
        }
    }
}

impl Sizes {
    /// Returns the number of an encoder.
    pub fn encoder(&self, replica: Replica) -> u32 {
        let first = self.first_encoders.iter().find(|(pool, _)| *pool == replica.pool);
        first.expect("a plan names pools of the run").1 + replica.index
    }

    /// Returns the number of a foundation replica.
    pub fn replica(&self, replica: Replica) -> u32 {
        let first = self.first_replicas.iter().find(|(pool, _)| *pool == replica.pool);
        first.expect("a plan names pools of the run").1 + replica.index
    }
}

/// Bytes by owner, owners in the order of their first entry.
fn gather(owners: &mut Vec<(u32, u64)>, entries: impl Iterator<Item = (u32, u64)>) {
    owners.clear();
    for (owner, bytes) in entries {
        match owners.iter_mut().find(|(known, _)| *known == owner) {
            Some((_, sum)) => *sum += bytes,
            None => owners.push((owner, bytes)),
        }
    }
}
