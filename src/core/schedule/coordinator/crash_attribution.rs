//! Counts how many encoders died while they worked on each media item. A dead encoder is attributed to its current unit. An item
//! that two encoders died on (a poison item) is skipped from then on.

use crate::message::{ActorId, ItemId, StepPlan, Unit, UnitId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Number of encoders that may die on an item.
pub const MAX_CRASHES: u32 = 2;

/// An item that an encoder worked on when it died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoisonItem {
    pub item: ItemId,
    /// Number of encoders that died on it so far.
    pub deaths: u32,
}

/// The current unit of each encoder, and how many encoders died on each item.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct CrashAttribution {
    at: BTreeMap<ActorId, UnitId>,
    deaths: BTreeMap<ItemId, u32>,
}

impl CrashAttribution {
    /// Starts with `known` deaths from earlier lives of the run.
    pub fn new(known: &[PoisonItem]) -> Self {
        let deaths = known.iter().map(|poison| (poison.item, poison.deaths)).collect();
        Self { at: BTreeMap::new(), deaths }
    }

    /// Records what an encoder works on from now on.
    pub fn at(&mut self, encoder: ActorId, unit: Option<UnitId>) {
        match unit {
            Some(unit) => drop(self.at.insert(encoder, unit)),
            None => drop(self.at.remove(&encoder)),
        }
    }

    /// Removes and returns an encoder's current unit, when the encoder is gone.
    pub fn take(&mut self, encoder: ActorId) -> Option<UnitId> {
        self.at.remove(&encoder)
    }

    /// Records that an encoder died on this unit, and returns what is known about its items.
    pub fn died_of(&mut self, unit: &Unit) -> Vec<PoisonItem> {
        let count = |item: ItemId| {
            let deaths = self.deaths.entry(item).or_default();
            *deaths += 1;
            PoisonItem { item, deaths: *deaths }
        };
        unit.items.iter().map(|item| item.id).map(count).collect()
    }

    /// Returns whether any item of the unit must no longer be assigned.
    pub fn is_poison(&self, unit: &Unit) -> bool {
        unit.items.iter().any(|item| self.deaths.get(&item.id).is_some_and(|&deaths| deaths >= MAX_CRASHES))
    }

    /// Returns the plan's units with an item that has reached the limit of deaths.
    pub fn poison_units<'a>(&self, plan: &'a StepPlan) -> Vec<&'a Unit> {
        if self.deaths.is_empty() {
            return Vec::new();
        }
        plan.units.iter().filter(|unit| !unit.is_skipped() && self.is_poison(unit)).collect()
    }
}
