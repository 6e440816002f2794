//! What is written down.

use loongforge_core::message::{ActorId, Command, StepId};
use loongforge_core::schedule::Input;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Record {
    Began(Beginning),
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
    Input(Input),
    /// The run has ended.
    Ended,
}

/// What the run began with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beginning {
    /// Hash of the run's configuration.
    pub config: String,
    pub first_step: StepId,
    /// JSON of the scheduler's state.
    pub state: String,
    pub resume: Option<PathBuf>,
    pub rendezvous: PathBuf,
}
