//! The inputs that are needed to start a run, and the ways in which it may end.

use super::join::JoinError;
use crate::StopOn;
use crate::journal::JournalError;
use loongforge_core::engine::{Engine, EngineError};
use loongforge_core::message::PoolName;
use loongforge_core::schedule::{CoordinatorSpec, Failure};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Builds an engine on the thread that it will run on.
pub type EngineFactory = Box<dyn FnOnce() -> Result<Box<dyn Engine>, EngineError> + Send>;

/// Everything about a run except its engines.
pub struct RunSpec {
    pub coordinator: CoordinatorSpec,
    /// Checkpoint to start from; `coordinator` must agree.
    pub resume: Option<PathBuf>,
    /// `scheduler.queue`.
    pub queue: usize,
    pub stop: StopOn,
    /// The time that an engine may take to stop before it is given up.
    pub stop_grace: Duration,
    /// The time that a run waits for an encoder of a pool that has none left, by pool.
    pub grace: BTreeMap<PoolName, Duration>,
    /// Heartbeat timeout after which an actor's process is considered dead.
    pub lease: Duration,
}

impl RunSpec {
    /// Returns the capacity of every queue: as configured, but at least what the scheduler may leave unanswered.
    pub(super) fn queue(&self) -> usize {
        self.queue.max(self.coordinator.max_unanswered())
    }
}

/// The reason why a run did not end well.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The root cause.
    #[error(transparent)]
    Failed(#[from] Failure),
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("cannot start {what}: {source}")]
    Start { what: String, source: std::io::Error },
}
