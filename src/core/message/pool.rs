//! A new epoch of an encoder pool: its members, and which of them compute which units of the steps in flight.

use super::PoolName;
use super::ids::{ActorId, Epoch, StepId, UnitId};
use super::plan::StepPlan;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The new members of an encoder pool, and the steps in flight as reassigned to them.
///
/// Only `Unit::encoder` changes in a plan that was sent before, and only for encoders that have left. An index is never reused, so
/// an actor's id names one life of one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Regroup {
    pub pool: PoolName,
    /// The new epoch of the pool.
    pub epoch: Epoch,
    /// Indices of the encoders in order of rank.
    pub members: Vec<u32>,
    /// Number of `members`, counted from the first, that have the parameters of `step`. The others receive them from the first
    /// member when the pool first reduces.
    pub num_current: u32,
    /// Encoders that have left since the previous epoch.
    pub left: Vec<u32>,
    /// Units of `plans` that are assigned to another encoder than before.
    pub moved: BTreeSet<UnitId>,
    /// The first undecided step.
    pub step: StepId,
    /// Every planned step from there on, in order.
    pub plans: Vec<Arc<StepPlan>>,
}

impl Regroup {
    /// Returns the encoders that have left, as actors.
    pub fn left(&self) -> impl Iterator<Item = ActorId> + '_ {
        self.left.iter().map(|&index| ActorId::encoder_of(self.pool, index))
    }
}
