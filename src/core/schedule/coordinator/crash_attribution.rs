//! Counts the encoders that have died of each media item. An encoder that dies is taken to have died of the unit that it was at. An
//! item of which two encoders have died (a poison item) is left out from then on.

use crate::message::{ActorId, ItemId, StepPlan, Unit, UnitId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Encoders that an item may kill.
pub const MAX_CRASHES: u32 = 2;

/// An item that an encoder was at when it died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoisonItem {
    pub item: ItemId,
    /// Encoders that it has killed so far.
    pub deaths: u32,
}

/// Holds which unit each encoder is at, and how many encoders have died of each item.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct CrashAttribution {
    at: BTreeMap<ActorId, UnitId>,
    deaths: BTreeMap<ItemId, u32>,
}

impl CrashAttribution {
    /// `known`: from earlier lives of the run.
    pub fn new(known: &[PoisonItem]) -> Self {
        let deaths = known.iter().map(|poison| (poison.item, poison.deaths)).collect();
        Self { at: BTreeMap::new(), deaths }
    }

    /// Notes what an encoder works on from now on.
    pub fn at(&mut self, encoder: ActorId, unit: Option<UnitId>) {
        match unit {
            Some(unit) => drop(self.at.insert(encoder, unit)),
            None => drop(self.at.remove(&encoder)),
        }
    }

    /// Returns what it was at. Asked when it is gone: it is at nothing then.
    pub fn take(&mut self, encoder: ActorId) -> Option<UnitId> {
        self.at.remove(&encoder)
    }

    /// An encoder has died of this unit; what is known of its items now.
    pub fn died_of(&mut self, unit: &Unit) -> Vec<PoisonItem> {
        let count = |item: ItemId| {
            let deaths = self.deaths.entry(item).or_default();
            *deaths += 1;
            PoisonItem { item, deaths: *deaths }
        };
        unit.items.iter().map(|item| item.id).map(count).collect()
    }

    /// Returns whether an item of the unit is given to nobody any more.
    pub fn is_poison(&self, unit: &Unit) -> bool {
        unit.items.iter().any(|item| self.deaths.get(&item.id).is_some_and(|&deaths| deaths >= MAX_CRASHES))
    }

    /// Units of the plan with an item that as many encoders have died of as may.
    pub fn poison_units<'a>(&self, plan: &'a StepPlan) -> Vec<&'a Unit> {
        if self.deaths.is_empty() {
            return Vec::new();
        }
        plan.units.iter().filter(|unit| !unit.is_skipped() && self.is_poison(unit)).collect()
    }
}
