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
    /// A process conducts the run from here on; the first one's life is 1.
    Life(u64),
    /// An actor has its place: the number of its wire, and where its edges come in.
    Member {
        actor: ActorId,
        wire: u128,
        edges: PathBuf,
    },
    /// An actor was told something that is not the coordinator's to say.
    Told {
        actor: ActorId,
        command: Command,
    },
    /// The encoder pools that go on without encoders from here on.
    Reading(BTreeSet<PoolName>),
    Input(Input),
    /// The state that all inputs and messages before have come to. They are not in the journal any more.
    Snapshot(Snapshot),
    /// The run has ended.
    Ended,
}

impl Record {
    /// Returns whether it stays when what was heard before is left out.
    pub(super) fn is_lasting(&self) -> bool {
        matches!(self, Self::Began(_) | Self::Life(_) | Self::Member { .. } | Self::Reading(_))
    }
}

/// The start of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beginning {
    /// Hash of the run's configuration.
    pub config: String,
    pub first_step: StepId,
    pub state: SchedulerState,
    pub resume: Option<PathBuf>,
    pub rendezvous: PathBuf,
}

/// A scheduler between two inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    pub outstanding: OutstandingMessages,
    /// [`Coordinator::snapshot`](loongforge_core::schedule::Coordinator::snapshot).
    pub coordinator: Vec<u8>,
}
