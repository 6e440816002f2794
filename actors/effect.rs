//! Effects of the scheduler's inputs, carried out by its actor.

use loongforge_core::message::{ActorId, Command, Epoch, PoolName};
use loongforge_core::schedule::{CheckpointDraft, Doubt, Failure, Outcome};
use std::time::Duration;

/// An action that the caller performs after an input.
#[derive(Debug)]
pub enum Effect {
    Send(ActorId, Command),
    Evict(ActorId),
    /// Report when the grace period is over.
    Paused(PoolName, Epoch),
    /// Report again a little later.
    Doubt(Doubt),
    /// Answered by `Scheduler::published`.
    Publish(Box<CheckpointDraft>),
    /// Report when this much time has passed.
    RetrySave(Duration),
    /// A scheduler that died told the actor to stop: report if it does not.
    Stopping(ActorId),
    Finished(Result<Outcome, Failure>),
}
