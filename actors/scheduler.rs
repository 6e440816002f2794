//! The scheduler: the run's state machine, and what it makes visible to the outside.
//!
//! Stop: on request (SIGINT, SIGTERM) after the step in progress, with a checkpoint; a second request stops at once.
//! Drain: every actor is told to stop and waited for. Peer gone: the run goes on without an encoder; else everyone is stopped
//! and the first cause is named.

use crate::checkpoint::prepare;
use loongforge_core::engine::error_chain;
use loongforge_core::message::{ActorId, BadSample, Command, Epoch, Event, StepId, Trace};
use loongforge_core::schedule::{
    CheckpointDraft, Coordinator, Failure, Input, Outcome, Output, PoolChange, StepSummary,
};
use std::collections::VecDeque;
use std::error::Error;

/// Sees what a run does. Called on the scheduler's thread, in the order of steps.
pub trait Observer {
    /// A step was applied or skipped.
    fn step(&mut self, summary: &StepSummary);

    /// The encoder pool has other members.
    fn pool(&mut self, _change: &PoolChange) {}

    /// Samples were skipped.
    fn bad(&mut self, samples: &[BadSample]);

    /// An engine tells of its time. Of interest to whoever watches.
    fn trace(&mut self, _actor: ActorId, _trace: Trace) {}

    /// The run has ended.
    fn finished(&mut self, _result: &Result<Outcome, Failure>) {}

    /// Writes the manifest and gives the folder of a checkpoint its final name.
    ///
    /// # Errors
    /// End the run, naming the checkpoint.
    fn publish(&mut self, draft: &CheckpointDraft) -> Result<(), Box<dyn Error>>;
}

/// A coordinator and its observer: what is left for the actor is to deliver.
pub struct Scheduler {
    coordinator: Coordinator,
    observer: Box<dyn Observer>,
}

/// What is left to do after an input.
#[derive(Debug)]
pub enum Effect {
    Send(ActorId, Command),
    Evict(ActorId),
    /// Say so when the grace is over.
    Paused(Epoch),
    Finished(Result<Outcome, Failure>),
}

impl Scheduler {
    pub fn new(coordinator: Coordinator, observer: Box<dyn Observer>) -> Self {
        Self { coordinator, observer }
    }

    pub fn on(&mut self, input: Input) -> Vec<Effect> {
        if let Input::Event(actor, Event::Trace(trace)) = input {
            self.observer.trace(actor, trace);
            return Vec::new();
        }
        let (mut effects, mut inputs) = (Vec::new(), VecDeque::from([input]));
        while let Some(input) = inputs.pop_front() {
            for output in self.coordinator.on(input) {
                match output {
                    Output::Send(actor, command) => effects.push(Effect::Send(actor, command)),
                    Output::Evict(actor) => effects.push(Effect::Evict(actor)),
                    Output::Paused(epoch) => effects.push(Effect::Paused(epoch)),
                    Output::Pool(change) => self.observer.pool(&change),
                    Output::Finished(result) => {
                        self.observer.finished(&result);
                        effects.push(Effect::Finished(result));
                    }
                    Output::Step(summary) => self.observer.step(&summary),
                    Output::Bad(samples) => self.observer.bad(&samples),
                    Output::Prepare(step, dir) => {
                        inputs.extend(prepare(&dir).err().map(|error| failed(step, &error)));
                    }
                    Output::Publish(draft) => inputs.push_back(match self.observer.publish(&draft) {
                        Ok(()) => Input::Published(draft.step),
                        Err(error) => failed(draft.step, &*error),
                    }),
                }
            }
        }
        effects
    }
}

fn failed(step: StepId, error: &(dyn Error + 'static)) -> Input {
    Input::PublishFailed(step, error_chain(error))
}
