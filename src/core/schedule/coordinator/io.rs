//! What goes into a coordinator and what comes out.

use super::{FittedCosts, SchedulerState, StepBalance};
use crate::message::{ActorId, BadSample, Command, Event, RoutingReport, SavedFile, StepId, Timings};
use std::fmt;
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    Event(ActorId, Event),
    /// The actor's thread or process has ended, or is given up. Needs no `Failed` before it, nor forbids one.
    Gone(ActorId, String),
    /// Finish the step in progress, save and stop. A second one stops at once.
    StopRequested,
    /// Answer to [`Output::Publish`].
    Published(StepId),
    /// A checkpoint folder could not be made or published.
    PublishFailed(StepId, String),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    Send(ActorId, Command),
    Step(Box<StepSummary>),
    /// Samples that were skipped, in the order of their positions.
    Bad(Vec<BadSample>),
    /// Make this folder, empty, before what follows is sent.
    Prepare(StepId, PathBuf),
    /// All engines have written their files.
    Publish(CheckpointDraft),
    /// Every actor has ended. Nothing follows.
    Finished(Result<Outcome, Failure>),
}

/// A step that every engine has applied or skipped.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSummary {
    pub step: StepId,
    /// Mean over the step's target tokens.
    pub loss: f64,
    /// Over both pools, before clipping.
    pub grad_norm: f64,
    /// Of a foundation with experts.
    pub routing: Option<RoutingReport>,
    pub learning_rate: f64,
    pub num_samples: usize,
    pub num_tokens: usize,
    pub num_targets: u64,
    /// Media items.
    pub num_items: usize,
    pub num_packs: usize,
    /// False: loss or gradient was not finite and the parameters are as before.
    pub applied: bool,
    /// Of every encoder and foundation engine, in that order.
    pub timings: Vec<(ActorId, Timings)>,
    pub balance: StepBalance,
    /// What is fitted after the step, with `scheduler.balance: fitted`.
    pub costs: Option<FittedCosts>,
}

/// A checkpoint whose files are written but which nobody may see yet.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointDraft {
    /// The last step that is in it: a resumed run begins with the one after.
    pub step: StepId,
    /// The folder that the files are in, to be renamed.
    pub dir: PathBuf,
    /// What a resumed run's scheduler begins with.
    pub state: SchedulerState,
    pub files: Vec<SavedFile>,
}

/// How a run ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Completed,
    /// Stopped on request; what was computed is in a checkpoint.
    Preempted,
}

/// The first cause of a run's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub actor: ActorId,
    pub cause: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.actor == ActorId::SCHEDULER {
            f.write_str(&self.cause)
        } else {
            write!(f, "{}: {}", self.actor, self.cause)
        }
    }
}

impl std::error::Error for Failure {}
