//! One planned step as indices: who computes what, and what each pack and unit still waits for.

use super::Costs;
use super::data::Sending;
use crate::message::StepPlan;
use std::collections::BTreeMap;
use std::sync::Arc;

/// No unit.
pub(super) const NONE: u32 = u32::MAX;

/// Lists of indices by owner, in one piece of memory.
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

    pub fn of(&self, owner: u32) -> &[u32] {
        &self.entries[self.starts[owner as usize] as usize..self.starts[owner as usize + 1] as usize]
    }
}

/// A step between its plan and its end.
pub(super) struct Step {
    pub plan: Arc<StepPlan>,
    /// Seconds of each unit and pack, forward and backward, and bytes of each unit's features.
    pub unit_seconds: Vec<f64>,
    pub pack_seconds: Vec<f64>,
    pub feature_bytes: Vec<u64>,
    /// Parcels of tokens and units of features that have not come, by pack.
    pub tokens_missing: Vec<u32>,
    pub features_missing: Vec<u32>,
    /// Parcels of pixels that have not come, by unit.
    pub pixels_missing: Vec<u32>,
    pub units_of_pack: Lists,
    pub packs_of_replica: Lists,
    /// Units that are not encoded, and units that have not come back, by encoder.
    pub units_to_encode: Vec<u32>,
    pub units_open: Vec<u32>,
    /// The next unit of the same lane, and whether all before it are done, by unit.
    pub lane_next: Vec<u32>,
    pub lane_turn: Vec<bool>,
    /// The next unit that goes from the same encoder to the same replica, and whether all before it are encoded, by unit.
    pub order_next: Vec<u32>,
    pub order_turn: Vec<bool>,
    /// Whether its gradient has come, by unit.
    pub returned: Vec<bool>,
    /// What each data actor sends, in order.
    pub sendings: Vec<Vec<Sending>>,
}

impl Step {
    pub fn new(
        plan: Arc<StepPlan>,
        num_data: usize,
        num_encoders: usize,
        num_replicas: usize,
        bytes: Bytes,
        costs: &Costs,
    ) -> Self {
        let (num_packs, num_units) = (plan.packs.len(), plan.units.len());
        // Packs are numbered within their step in the order of the plan.
        let units_of_pack = Lists::new(num_packs, plan.units.iter().map(|unit| unit.pack.index));
        let packs_of_replica = Lists::new(num_replicas, plan.packs.iter().map(|pack| pack.replica));
        let mut step = Self {
            unit_seconds: plan.units.iter().map(|unit| costs.encoder.unit(unit)).collect(),
            pack_seconds: plan.packs.iter().map(|pack| costs.foundation.pack(pack)).collect(),
            feature_bytes: plan.units.iter().map(|unit| unit.num_features() as u64 * bytes.per_feature).collect(),
            tokens_missing: vec![0; num_packs],
            features_missing: (0..num_packs as u32).map(|pack| units_of_pack.of(pack).len() as u32).collect(),
            pixels_missing: vec![0; num_units],
            units_of_pack,
            packs_of_replica,
            units_to_encode: vec![0; num_encoders],
            units_open: vec![0; num_encoders],
            lane_next: vec![NONE; num_units],
            lane_turn: vec![false; num_units],
            order_next: vec![NONE; num_units],
            order_turn: vec![false; num_units],
            returned: vec![false; num_units],
            sendings: vec![Vec::new(); num_data],
            plan,
        };
        step.chain_units();
        step.list_sendings(bytes);
        step
    }

    fn chain_units(&mut self) {
        let num_lanes = self.plan.units.iter().map(|unit| unit.lane.0 as usize + 1).max().unwrap_or(0);
        let mut last = vec![NONE; num_lanes];
        let mut last_between: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        for (index, unit) in self.plan.units.iter().enumerate() {
            self.units_to_encode[unit.encoder as usize] += 1;
            self.units_open[unit.encoder as usize] += 1;
            let here = index as u32;
            match std::mem::replace(&mut last[unit.lane.0 as usize], here) {
                NONE => self.lane_turn[index] = true,
                before => self.lane_next[before as usize] = here,
            }
            match last_between.insert((unit.encoder, unit.replica), here) {
                None => self.order_turn[index] = true,
                Some(before) => self.order_next[before as usize] = here,
            }
        }
    }

    /// As the data engine sends: pack by pack, pixels first, one parcel for each unit or pack and owner.
    fn list_sendings(&mut self, bytes: Bytes) {
        let plan = self.plan.clone();
        let mut owners: Vec<(u32, u64)> = Vec::new();
        for (index, pack) in plan.packs.iter().enumerate() {
            for &unit_index in self.units_of_pack.of(index as u32) {
                let unit = &plan.units[unit_index as usize];
                let items = unit.items.iter();
                gather(
                    &mut owners,
                    items.map(|item| (item.owner, item.meta.grid.num_patches() as u64 * bytes.per_patch)),
                );
                self.pixels_missing[unit_index as usize] = owners.len() as u32;
                for &(owner, bytes) in &owners {
                    self.sendings[owner as usize].push(Sending { is_pixels: true, index: unit_index, bytes });
                }
            }
            let samples = pack.samples.iter();
            gather(&mut owners, samples.map(|sample| (sample.owner, u64::from(sample.num_tokens) * bytes.per_token)));
            self.tokens_missing[index] = owners.len() as u32;
            for &(owner, bytes) in &owners {
                self.sendings[owner as usize].push(Sending { is_pixels: false, index: index as u32, bytes });
            }
        }
    }

    pub fn is_whole(&self, pack: u32) -> bool {
        self.tokens_missing[pack as usize] == 0 && self.features_missing[pack as usize] == 0
    }
}

/// Sizes on the wire.
#[derive(Clone, Copy)]
pub(super) struct Bytes {
    pub per_patch: u64,
    pub per_token: u64,
    pub per_feature: u64,
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
