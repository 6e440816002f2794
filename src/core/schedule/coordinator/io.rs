//! Inputs and outputs of a coordinator.

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
    /// The actor's thread or process has ended, or is given up, with or without a `Failed` before.
    Gone(ActorId, String),
    /// This encoder's process has connected to a running job; once it is `Ready` it joins its pool.
    Joined(ActorId),
    /// Remove these encoders at the next opportunity, those of a pool together if possible.
    Retire(Vec<ActorId>),
    /// The pause that began with this epoch of a pool has reached its time limit.
    GraceOver(PoolName, Epoch),
    /// Answers [`Output::Doubt`], after the encoder's last messages must have arrived.
    Doubted(Doubt),
    /// Finish the step in progress, save and stop. A second request stops at once.
    StopRequested,
    /// Save after the next step, and continue.
    SaveRequested,
    /// Answers [`Output::Publish`].
    Published(StepId, SaveTo),
    /// A checkpoint folder could not be created or published.
    PublishFailed(StepId, SaveTo, String),
    /// Answers [`Output::SaveFailed`] of a checkpoint to be retried, when it is time.
    RetrySave,
}

/// An actor has lost its edge to or from an encoder.
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
    /// Drop this actor, which may not know yet.
    Evict(ActorId),
    /// A pool has no encoder left: the run waits for one.
    Paused(PoolName, Epoch),
    Step(Box<StepSummary>),
    /// Held-out samples were evaluated between two steps.
    Evaluated(Box<EvaluationSummary>),
    /// Samples that were skipped, in order of position.
    Bad(Vec<SkippedSample>),
    /// Items that an encoder died on, to be known to the next lives of the run.
    CrashedOn(Vec<PoisonItem>),
    /// An actor reports that an encoder is gone. Ask again a little later, with [`Input::Doubted`]: if it is gone, its last
    /// messages arrive before.
    Doubt(Doubt),
    /// Create this folder, empty, before later outputs are sent.
    Prepare(StepId, SaveTo, PathBuf),
    /// All engines have written their files.
    Publish(Box<CheckpointDraft>),
    /// A checkpoint could not be written. The run continues.
    SaveFailed(FailedSave),
    /// The engines wait with this step, whose state is to be saved, until an earlier checkpoint is published.
    SaveWaits(StepId),
    /// The run is about to end because steps are not finite.
    NonFinite(NonFinite),
    /// Every actor has ended. Nothing follows.
    Finished(Result<Outcome, Failure>),
}

/// New members of an encoder pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolChange {
    pub pool: PoolName,
    pub epoch: Epoch,
    /// Members in order of rank.
    pub members: Vec<ActorId>,
    pub joined: Vec<ActorId>,
    /// Encoders that have left, and why.
    pub left: Vec<(ActorId, String)>,
}

/// Results of a step in one of several foundation pools, which have their own models.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpertStep {
    pub pool: PoolName,
    /// Number of samples; if 0, the pool's model, optimizer state and averages stay unchanged.
    pub num_samples: usize,
    pub num_targets: u64,
    /// Mean over the pool's own targets; 0 if there are none.
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
    /// The gradient norm over all pools, before clipping.
    pub grad_norm: f64,
    /// The foundation pools, if there are several.
    pub experts: Vec<ExpertStep>,
    /// The routing of a foundation with experts.
    pub routing: Option<RoutingReport>,
    /// Statistics of answer pairs, if the run learns from them.
    pub pairs: Option<PairReport>,
    pub learning_rate: f64,
    pub num_samples: usize,
    pub num_tokens: usize,
    pub num_targets: u64,
    /// Number of media items.
    pub num_items: usize,
    pub num_packs: usize,
    /// False: loss or gradient was not finite, and the parameters are unchanged.
    pub applied: bool,
    /// The samples that were skipped, if the step was not applied.
    pub skipped: Vec<SampleId>,
    /// Timings of every encoder and foundation engine, in that order.
    pub timings: Vec<(ActorId, Timings)>,
    pub balance: StepBalance,
    /// The ledger up to this step.
    pub ledger: Ledger,
    /// Fitted costs after the step, with `scheduler.balance: fitted`.
    pub costs: Option<FittedCosts>,
    /// Encoders of an elastic pool that are much slower than the others and get less work.
    pub stragglers: Vec<Straggler>,
}

/// The way in which a run ended without a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    Completed,
    /// Stopped on request; what was computed is in a checkpoint.
    Preempted,
}

/// The root cause of a run's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub actor: ActorId,
    pub cause: String,
    pub(super) kind: FailureKind,
}

/// The meaning of a failure for a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureKind {
    /// A fault of an actor, or of the run.
    Fault,
    /// An actor is gone, and nothing is known to be wrong.
    Loss,
    /// Numbers are not finite.
    Numbers,
}

impl Failure {
    /// Returns the failure of an actor by a fault of its own, or of the run's.
    pub fn new(actor: ActorId, cause: String) -> Self {
        Self { actor, cause, kind: FailureKind::Fault }
    }

    /// Returns the failure of an actor that is gone.
    pub fn loss(actor: ActorId, cause: String) -> Self {
        Self { kind: FailureKind::Loss, ..Self::new(actor, cause) }
    }

    /// Returns whether an actor was lost without a known fault of the run: a restart from the last checkpoint may succeed.
    pub fn is_loss(&self) -> bool {
        self.kind == FailureKind::Loss
    }

    /// Returns whether numbers are not finite: a restart would give the same result.
    pub fn is_numeric(&self) -> bool {
        self.kind == FailureKind::Numbers
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
