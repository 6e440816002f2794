//! Records of a journal.

use super::OutstandingMessages;
use loongforge_core::message::{ActorId, Command, PoolName, StepId};
use loongforge_core::schedule::{Input, SchedulerState};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Record {
    Began(Box<Beginning>),
    /// A process runs the run from here on; the first life is 1.
    Life(u64),
    /// An actor has its place: the number of its wire, and the address of its incoming edges.
    Member {
        actor: ActorId,
        wire: u128,
        edges: PathBuf,
    },
    /// An actor was sent something that does not come from the coordinator.
    Told {
        actor: ActorId,
        command: Command,
    },
    /// The encoder pools that continue without encoders from here on.
    Reading(BTreeSet<PoolName>),
    Input(Input),
    /// The state after all earlier inputs and messages, which are no longer in the journal.
    Snapshot(Snapshot),
    /// The run has ended.
    Ended,
}

impl Record {
    /// Returns whether the record stays when earlier inputs are dropped.
    pub(super) fn is_lasting(&self) -> bool {
        matches!(self, Self::Began(_) | Self::Life(_) | Self::Member { .. } | Self::Reading(_))
    }
}

/// The start of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beginning {
    /// Hash of the run's config.
    pub config: String,
    pub first_step: StepId,
    pub state: SchedulerState,
    pub resume: Option<PathBuf>,
    /// [`CoordinatorSpec::is_kept`](loongforge_core::schedule::CoordinatorSpec::is_kept).
    pub is_kept: bool,
    pub rendezvous: PathBuf,
}

/// A scheduler between two inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    pub outstanding: OutstandingMessages,
    /// [`Coordinator::snapshot`](loongforge_core::schedule::Coordinator::snapshot).
    pub coordinator: Vec<u8>,
}
