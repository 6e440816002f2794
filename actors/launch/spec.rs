//! Describes what a run needs to be started, and how it may end.

use super::join::JoinError;
use crate::StopOn;
use crate::journal::JournalError;
use loongforge_core::engine::{Engine, EngineError};
use loongforge_core::message::PoolName;
use loongforge_core::schedule::{CoordinatorSpec, Failure};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Builds an engine on the thread that it will live on.
pub type EngineFactory = Box<dyn FnOnce() -> Result<Box<dyn Engine>, EngineError> + Send>;

/// Everything about a run but its engines.
pub struct RunSpec {
    pub coordinator: CoordinatorSpec,
    /// Checkpoint to begin from; `coordinator` must agree.
    pub resume: Option<PathBuf>,
    /// `scheduler.queue`.
    pub queue: usize,
    pub stop: StopOn,
    /// Tells how long an engine may take to stop before it is given up.
    pub stop_grace: Duration,
    /// Tells how long a run waits for an encoder of a pool that has none left, by pool.
    pub grace: BTreeMap<PoolName, Duration>,
    /// An actor's process that gives no sign of life for so long is taken for dead.
    pub lease: Duration,
}

impl RunSpec {
    /// Length of every queue: as configured, and never less than what the scheduler may leave unanswered.
    pub(super) fn queue(&self) -> usize {
        self.queue.max(self.coordinator.max_unanswered())
    }
}

/// Why a run did not end well.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The first cause.
    #[error(transparent)]
    Failed(#[from] Failure),
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("cannot start {what}: {source}")]
    Start { what: String, source: std::io::Error },
}
