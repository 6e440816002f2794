//! The news that a board is told.

use crate::message::{ActorId, Timings, Trace};
use crate::observe::StepMetrics;
use std::time::Duration;

/// The facts that do not change while a run goes on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunInfo {
    pub name: String,
    /// The run's folder.
    pub dir: String,
    /// Every actor but the scheduler.
    pub actors: Vec<ActorId>,
    /// The step that this process began with, and the last one's number plus one.
    pub first_step: u64,
    pub num_steps: u64,
    /// The version of the program.
    pub version: String,
}

/// Something has happened.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    Step(Box<StepMetrics>, Vec<(ActorId, Timings)>),
    /// An actor's last stretch of time.
    Trace(ActorId, Trace),
    /// Losses of held-out samples after so many steps, by the names of their sets.
    Evaluated {
        step: u64,
        losses: Vec<(String, f64)>,
    },
    /// The sheet of the samples that were made after so many steps, as PNG.
    Samples {
        step: u64,
        png: Vec<u8>,
    },
    /// The state of an actor, in words; empty where there is nothing to say.
    Actor(ActorId, String),
    /// An actor left or was given up, in words.
    Left(ActorId, String),
    /// A checkpoint of the steps before this one was published, after so long.
    Checkpoint {
        step: u64,
        took: Duration,
    },
    /// The run has ended, in words.
    Ended(String),
}
