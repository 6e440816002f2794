//! Effects of the scheduler's inputs, which its actor carries out.

use loongforge_core::message::{ActorId, Command, Epoch, PoolName};
use loongforge_core::schedule::{CheckpointDraft, Doubt, Failure, Outcome};
use std::time::Duration;

/// Says what is left to do after an input.
#[derive(Debug)]
pub enum Effect {
    Send(ActorId, Command),
    Evict(ActorId),
    /// Say so when the grace is over.
    Paused(PoolName, Epoch),
    /// Say so again a little later.
    Doubt(Doubt),
    /// To be answered by `Scheduler::published`.
    Publish(Box<CheckpointDraft>),
    /// Say so when it has lasted so long.
    RetrySave(Duration),
    /// A scheduler that has died told it to stop: say so where it does not.
    Stopping(ActorId),
    Finished(Result<Outcome, Failure>),
}
