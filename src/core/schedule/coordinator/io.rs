//! Describes what goes into a coordinator and what comes out.

use super::{
    CheckpointDraft, EvaluationSummary, FailedSave, FittedCosts, Ledger, NonFinite, PoisonItem, StepBalance, Straggler,
};
use crate::message::{
    ActorId, Command, Epoch, Event, PairReport, PoolName, RoutingReport, SampleId, SaveTo, SkippedSample, StepId,
    Timings,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

// An event is by far the most frequent input: a box would cost more than it saves.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Input {
    Event(ActorId, Event),
    /// The actor's thread or process has ended, or is given up. Needs no `Failed` before it, nor forbids one.
    Gone(ActorId, String),
    /// This encoder's process has connected to a running job; once it is `Ready` it joins its pool.
    Joined(ActorId),
    /// Let this encoder go when it suits.
    Retire(ActorId),
    /// The pause that began with this epoch of a pool has lasted as long as it may.
    GraceOver(PoolName, Epoch),
    /// Answer to [`Output::Doubt`], when its last words must have come.
    Doubted(Doubt),
    /// Finish the step in progress, save and stop. A second one stops at once.
    StopRequested,
    /// Save after the next step, and go on.
    SaveRequested,
    /// Answer to [`Output::Publish`].
    Published(StepId, SaveTo),
    /// A checkpoint folder could not be made or published.
    PublishFailed(StepId, SaveTo, String),
    /// Answer to [`Output::SaveFailed`] of one that is to be tried again, when it is time.
    RetrySave,
}

/// An actor has no edge to or from an encoder any more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Doubt {
    pub by: ActorId,
    pub encoder: ActorId,
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    Send(ActorId, Command),
    /// An encoder pool has changed.
    Pool(PoolChange),
    /// Have nothing to do with this actor any more; it may not know that yet.
    Evict(ActorId),
    /// There is no encoder left in a pool to go on with: the run waits for one.
    Paused(PoolName, Epoch),
    Step(Box<StepSummary>),
    /// Held-out samples were evaluated between two steps.
    Evaluated(Box<EvaluationSummary>),
    /// Samples that were skipped, in the order of their positions.
    Bad(Vec<SkippedSample>),
    /// Items that an encoder has died of, to be known to the next lives of the run.
    CrashedOn(Vec<PoisonItem>),
    /// Somebody says that an encoder is gone. Ask again a little later, with [`Input::Doubted`]: if it is, its last words
    /// are heard before.
    Doubt(Doubt),
    /// Make this folder, empty, before what follows is sent.
    Prepare(StepId, SaveTo, PathBuf),
    /// All engines have written their files.
    Publish(Box<CheckpointDraft>),
    /// A checkpoint could not be written. The run goes on.
    SaveFailed(FailedSave),
    /// Why the run is about to end: steps are not finite.
    NonFinite(NonFinite),
    /// Every actor has ended. Nothing follows.
    Finished(Result<Outcome, Failure>),
}

/// Other members of an encoder pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolChange {
    pub pool: PoolName,
    pub epoch: Epoch,
    /// In the order of ranks.
    pub members: Vec<ActorId>,
    pub joined: Vec<ActorId>,
    /// Tells who has left, and why.
    pub left: Vec<(ActorId, String)>,
}

/// Holds what a step came to in one of several foundation pools, which have models of their own.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpertStep {
    pub pool: PoolName,
    /// With none the pool's model, its optimizer and its averages stay as they are.
    pub num_samples: usize,
    pub num_targets: u64,
    /// Mean over the pool's own targets; 0 where there are none.
    pub loss: f64,
    /// Norm of the gradient of that loss, before clipping.
    pub grad_norm: f64,
    /// Factor for the gradient that the pool has reduced, which is of the loss of the whole batch.
    pub(super) scale: f64,
}

/// A step that every engine has applied or skipped.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSummary {
    pub step: StepId,
    /// Mean over the step's target tokens.
    pub loss: f64,
    /// Over all pools, before clipping.
    pub grad_norm: f64,
    /// The foundation pools, where there are several.
    pub experts: Vec<ExpertStep>,
    /// The routing of a foundation with experts.
    pub routing: Option<RoutingReport>,
    /// The pairs of answers, where the run learns from such.
    pub pairs: Option<PairReport>,
    pub learning_rate: f64,
    pub num_samples: usize,
    pub num_tokens: usize,
    pub num_targets: u64,
    /// Media items.
    pub num_items: usize,
    pub num_packs: usize,
    /// False: loss or gradient was not finite and the parameters are as before.
    pub applied: bool,
    /// Holds what was skipped, where it was not applied.
    pub skipped: Vec<SampleId>,
    /// The timings of every encoder and foundation engine, in that order.
    pub timings: Vec<(ActorId, Timings)>,
    pub balance: StepBalance,
    /// The ledger of the steps up to this one.
    pub ledger: Ledger,
    /// Holds what is fitted after the step, with `scheduler.balance: fitted`.
    pub costs: Option<FittedCosts>,
    /// Encoders of an elastic pool that are much slower than the others and are given less.
    pub stragglers: Vec<Straggler>,
}

/// Says how a run ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The actor was lost, by no fault of the run that is known: beginning again at the last checkpoint may go well.
    pub is_loss: bool,
    /// Numbers are not finite: beginning again would come to the same.
    pub is_numeric: bool,
}

impl Failure {
    /// An actor that is gone.
    pub fn loss(actor: ActorId, cause: String) -> Self {
        Self { actor, cause, is_loss: true, is_numeric: false }
    }
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
