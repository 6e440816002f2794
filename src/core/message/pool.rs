//! An encoder pool anew: who belongs to it, and who computes which units of the steps in flight.

use super::PoolName;
use super::ids::{ActorId, Epoch, StepId, UnitId};
use super::plan::StepPlan;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Members of an encoder pool from now on, and the steps in flight as they are shared out among them.
///
/// Nothing but `Unit::encoder` changes in a plan that was sent before, and only where the encoder has left. An index is
/// never used again, so an actor's id names one life of one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Regroup {
    pub pool: PoolName,
    /// The generation of that pool.
    pub epoch: Epoch,
    /// Indices of the encoders in the order of their ranks.
    pub members: Vec<u32>,
    /// So many of `members`, the first ones, have the parameters of `step`. The others take them from the first member
    /// when the pool first reduces.
    pub num_current: u32,
    /// Tells who has left since the epoch before.
    pub left: Vec<u32>,
    /// Units of `plans` that have another encoder than before.
    pub moved: BTreeSet<UnitId>,
    /// The first step that is not decided.
    pub step: StepId,
    /// Every step from there on that is planned, in order.
    pub plans: Vec<Arc<StepPlan>>,
}

impl Regroup {
    /// Returns who has left, as actors.
    pub fn left(&self) -> impl Iterator<Item = ActorId> + '_ {
        self.left.iter().map(|&index| ActorId::encoder_of(self.pool, index))
    }
}
