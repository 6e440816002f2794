//! The scheduler: the run's state machine, and its externally visible effects.
//!
//! Stop: on request (SIGINT, SIGTERM, SIGHUP) after the step in progress, with a checkpoint; a second request stops at once. Drain: every
//! actor is told to stop and waited for. Peer gone: the run continues without an encoder; otherwise everyone is stopped and the
//! root cause is named.

use crate::checkpoint::{discard, prepare};
use crate::effect::Effect;
use crate::journal::{Journal, OutstandingMessages, Record, Snapshot};
use loongforge_core::engine::error_chain;
use loongforge_core::message::{ActorId, Command, Event, SaveTo, SkippedSample, StepId, Trace};
use loongforge_core::schedule::{
    CheckpointDraft, Coordinator, EvaluationSummary, FailedSave, Failure, Input, NonFinite, Outcome, Output,
    PoisonItem, PoolChange, StepSummary,
};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// Writes the manifest and renames a checkpoint's folder to its final name, which it returns. Called on its own thread; an error
/// leaves earlier checkpoints unchanged.
pub type Publisher = Box<dyn Fn(&CheckpointDraft) -> Result<PathBuf, Box<dyn Error + Send + Sync>> + Send>;

/// Longest time between two attempts to write a checkpoint.
const MAX_BACK_OFF: Duration = Duration::from_secs(60);

/// Observes a run. Called on the scheduler's thread, in the order of steps.
pub trait Observer {
    /// A step was applied or skipped.
    fn step(&mut self, summary: &StepSummary);

    /// Reports that held-out samples were evaluated between two steps. A scheduler that takes over may report it again.
    fn evaluated(&mut self, _summary: &EvaluationSummary) {}

    /// The members of an encoder pool have changed.
    fn pool(&mut self, _change: &PoolChange) {}

    /// Samples were skipped.
    fn bad(&mut self, samples: &[SkippedSample]);

    /// An encoder died on these items: the next lives of the run must know them
    /// ([`SchedulerState::poison_items`](loongforge_core::schedule::SchedulerState::poison_items)).
    fn crashed_on(&mut self, _items: &[PoisonItem]) {}

    /// Reports trace data of an engine.
    fn trace(&mut self, _actor: ActorId, _trace: Trace) {}

    /// The run has ended.
    fn finished(&mut self, _result: &Result<Outcome, Failure>) {}

    /// Returns the publisher of the run's checkpoints; called once.
    fn publisher(&mut self) -> Publisher;

    /// A checkpoint is ready to be loaded.
    fn published(&mut self, _draft: &CheckpointDraft, _path: &Path, _took: Duration) {}

    /// A checkpoint could not be written. The run continues.
    fn save_failed(&mut self, _failed: &FailedSave) {}

    /// The engines wait with a step, whose state is to be saved, until an earlier checkpoint is published.
    fn save_waits(&mut self, _step: StepId) {}

    /// The run is about to end because steps are not finite.
    fn not_finite(&mut self, _found: &NonFinite) {}
}

/// A coordinator and its observer; the actor only delivers messages.
pub struct Scheduler {
    coordinator: Coordinator,
    observer: Box<dyn Observer>,
    journal: Option<Rc<RefCell<Journal>>>,
    /// Size in bytes above which the journal is truncated.
    cut_after: u64,
    /// The messages in flight, tracked if there is a journal, or one is replayed.
    outstanding: OutstandingMessages,
    /// The first step that the observer has not seen, while a journal is replayed.
    first_unseen: Option<StepId>,
}

impl Scheduler {
    /// Drives a coordinator and notifies `observer`, without a journal.
    pub fn new(coordinator: Coordinator, observer: Box<dyn Observer>) -> Self {
        Self {
            coordinator,
            observer,
            journal: None,
            cut_after: 0,
            outstanding: OutstandingMessages::default(),
            first_unseen: None,
        }
    }

    /// Adds what is known about the messages of a scheduler that died.
    pub fn with_outstanding(self, outstanding: OutstandingMessages) -> Self {
        Self { outstanding, ..self }
    }

    /// Adds a journal: every input is written before it is processed.
    pub fn with_journal(self, journal: Option<Rc<RefCell<Journal>>>, cut_after: u64) -> Self {
        Self { journal, cut_after, ..self }
    }

    /// Returns the messages that each actor has not answered, which another scheduler would send again.
    pub fn outstanding(&self) -> &OutstandingMessages {
        &self.outstanding
    }

    /// Processes again an input of a scheduler that died. The observer is notified only of steps from `first_unseen` on.
    pub fn replay(&mut self, input: Input, first_unseen: StepId) -> Vec<Effect> {
        self.first_unseen = Some(first_unseen);
        let effects = self.on(input);
        self.first_unseen = None;
        effects
    }

    /// Records again what another sender told an actor, for a scheduler that died.
    pub fn replay_told(&mut self, actor: ActorId, command: &Command) {
        self.outstanding.told(actor, command);
    }

    /// Returns the actors that have not ended.
    pub fn alive(&self) -> Vec<ActorId> {
        self.coordinator.alive()
    }

    /// Returns whether the run's user has asked it to stop: another scheduler, where this one has taken over.
    pub fn user_has_asked(&self) -> bool {
        self.coordinator.user_has_asked()
    }

    /// Returns the encoders that are to be removed, and the actors that were told to stop and have not ended.
    pub fn leaving(&self) -> Vec<ActorId> {
        let stopping = |effect| match effect {
            Effect::Stopping(actor) => Some(actor),
            _ => None,
        };
        let told = self.outstanding.left().into_iter().filter_map(stopping);
        self.coordinator.leaving().into_iter().chain(told).collect()
    }

    /// Records a command that another sender gave an actor.
    pub fn told(&mut self, actor: ActorId, command: &Command) {
        if self.keeps_outstanding() {
            self.outstanding.told(actor, command);
        }
        self.write(|| Record::Told { actor, command: command.clone() });
    }

    fn keeps_outstanding(&self) -> bool {
        self.journal.is_some() || self.first_unseen.is_some()
    }

    /// Truncates the journal if it has become long.
    fn cut(&self) {
        let Some(journal) = self.journal.as_ref().filter(|_| self.first_unseen.is_none()) else { return };
        if journal.borrow().is_longer_than(self.cut_after) {
            let (outstanding, coordinator) = (self.outstanding.clone(), self.coordinator.snapshot());
            journal.borrow_mut().cut(Snapshot { outstanding, coordinator });
        }
    }

    fn write(&self, record: impl FnOnce() -> Record) {
        if let Some(journal) = self.journal.as_ref().filter(|_| self.first_unseen.is_none()) {
            journal.borrow_mut().append(&record());
        }
    }

    /// Returns the publisher of the run's checkpoints, for the publishing thread.
    pub fn publisher(&mut self) -> Publisher {
        self.observer.publisher()
    }

    /// Handles the result of publishing a draft.
    pub fn published(&mut self, draft: &CheckpointDraft, result: Result<(PathBuf, Duration), String>) -> Vec<Effect> {
        match result {
            Ok((path, took)) => {
                self.observer.published(draft, &path, took);
                self.on(Input::Published(draft.step, draft.to))
            }
            Err(error) => self.on(Input::PublishFailed(draft.step, draft.to, error)),
        }
    }

    /// Passes an input to the coordinator, and those that follow from it. Returns the effects, once the journal contains
    /// everything.
    pub fn on(&mut self, input: Input) -> Vec<Effect> {
        if let Input::Event(actor, Event::Trace(trace)) = input {
            self.observer.trace(actor, trace);
            return Vec::new();
        }
        let (mut effects, mut inputs) = (Vec::new(), VecDeque::from([input]));
        let mut step_ended = false;
        while let Some(input) = inputs.pop_front() {
            self.write(|| Record::Input(input.clone()));
            if self.keeps_outstanding() {
                self.outstanding.heard(&input);
            }
            let outputs = self.coordinator.on(input);
            let decides =
                |output: &Output| matches!(output, Output::Send(_, Command::Commit(_) | Command::Abort { .. }));
            if let Some(journal) =
                self.journal.as_ref().filter(|_| self.first_unseen.is_none() && outputs.iter().any(decides))
            {
                journal.borrow_mut().sync();
            }
            for output in outputs {
                step_ended |= matches!(output, Output::Step(_));
                if !self.is_news(&output) {
                    continue;
                }
                match output {
                    Output::Send(actor, command) => effects.push(Effect::Send(actor, command)),
                    Output::Evict(actor) => effects.push(Effect::Evict(actor)),
                    Output::Paused(pool, epoch) => effects.push(Effect::Paused(pool, epoch)),
                    Output::Doubt(doubt) => effects.push(Effect::Doubt(doubt)),
                    Output::CrashedOn(items) => self.observer.crashed_on(&items),
                    Output::Pool(change) => self.observer.pool(&change),
                    Output::Finished(result) => {
                        self.observer.finished(&result);
                        effects.push(Effect::Finished(result));
                    }
                    Output::Step(summary) => self.observer.step(&summary),
                    Output::Evaluated(summary) => self.observer.evaluated(&summary),
                    Output::Bad(samples) => self.observer.bad(&samples),
                    Output::Prepare(step, to, dir) => {
                        inputs.extend(prepare(&dir).err().map(|error| failed(step, to, &error)));
                    }
                    Output::Publish(draft) => effects.push(Effect::Publish(draft)),
                    Output::NonFinite(found) => self.observer.not_finite(&found),
                    Output::SaveWaits(step) => self.observer.save_waits(step),
                    Output::SaveFailed(failed) => {
                        if self.first_unseen.is_none() {
                            discard(&failed.dir);
                            self.observer.save_failed(&failed);
                        }
                        if failed.retries {
                            effects.push(Effect::RetrySave(back_off(failed.num_failures)));
                        }
                    }
                }
            }
        }
        if self.keeps_outstanding() {
            effects.iter().for_each(|effect| self.outstanding.follows(effect));
        }
        if step_ended {
            self.cut();
        }
        effects
    }

    /// Returns whether an output takes effect: during replay, only effects and steps that were not reported.
    fn is_news(&self, output: &Output) -> bool {
        let Some(first_unseen) = self.first_unseen else { return true };
        match output {
            Output::Step(summary) => summary.step >= first_unseen,
            Output::Pool(_)
            | Output::Bad(_)
            | Output::CrashedOn(_)
            | Output::Prepare(..)
            | Output::SaveWaits(_)
            | Output::NonFinite(_) => false,
            _ => true,
        }
    }
}

fn failed(step: StepId, to: SaveTo, error: &(dyn Error + 'static)) -> Input {
    Input::PublishFailed(step, to, error_chain(error))
}

/// Returns how long to wait after this many consecutive failures.
fn back_off(num_failures: usize) -> Duration {
    match num_failures {
        // Not the disk's fault.
        0 => Duration::ZERO,
        num => Duration::from_secs(1 << (num - 1).min(6)).min(MAX_BACK_OFF),
    }
}
