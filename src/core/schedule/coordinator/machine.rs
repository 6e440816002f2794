//! The state machine itself: what each input means in each phase.

use super::costs::Costs;
use super::drain::Drain;
use super::intake::Intake;
use super::save::Saves;
use super::step::InFlight;
use super::{CoordinatorSpec, Input, Outcome, Output, SchedulerState, StepBalance};
use crate::message::{ActorId, Command, Event, Role, SampleId, SavedFile, StepId, StepReport};
use crate::schedule::{Batch, plan_step};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A run from the first `Ready` to the last `Stopped`.
pub struct Coordinator {
    spec: CoordinatorSpec,
    /// Actors that are not ready yet.
    joining: BTreeSet<ActorId>,
    intake: Intake,
    costs: Costs,
    /// The first step that not all engines have applied.
    current: StepId,
    /// The first step that is not planned.
    next_plan: StepId,
    /// The run ends before this step.
    end: StepId,
    stop_requested: bool,
    in_flight: BTreeMap<StepId, InFlight>,
    num_skipped_in_row: usize,
    /// Where the stream stands after the last applied step; what is fitted lies beside.
    stream: SchedulerState,
    last_planned: Option<SampleId>,
    saves: Saves,
    last_saved: Option<StepId>,
    drain: Drain,
    finished: bool,
    out: Vec<Output>,
}

/// Something that ends the run: who, and why.
type Broken = (ActorId, String);

impl Coordinator {
    pub fn new(mut spec: CoordinatorSpec) -> Self {
        let costs = Costs::new(&spec);
        costs.apply(&mut spec.plan);
        Self {
            joining: spec.pools.actors().collect(),
            intake: Intake::new(&spec),
            costs,
            current: spec.first_step,
            next_plan: spec.first_step,
            end: StepId(spec.steps.max(spec.first_step.0)),
            stop_requested: false,
            in_flight: BTreeMap::new(),
            num_skipped_in_row: 0,
            stream: spec.state.clone(),
            last_planned: None,
            saves: Saves::default(),
            last_saved: None,
            drain: Drain::default(),
            finished: false,
            out: Vec::new(),
            spec,
        }
    }

    /// Takes an input; what is to be done because of it, in order.
    pub fn on(&mut self, input: Input) -> Vec<Output> {
        if !self.finished {
            let actor = match &input {
                Input::Event(actor, _) | Input::Gone(actor, _) => *actor,
                _ => ActorId::SCHEDULER,
            };
            let known = actor == ActorId::SCHEDULER || self.spec.pools.contains(actor);
            assert!(known, "{actor} is not of this run");
            let draining = self.drain.has_begun();
            if let Err((actor, cause)) = self.take(input).and_then(|()| self.advance()) {
                self.drain.fail(actor, cause, None);
            }
            if self.drain.has_begun() && !draining {
                self.send_to_all(&Command::Stop);
            }
            if let Some(result) = self.drain.finished(self.spec.pools) {
                self.finished = true;
                self.out.push(Output::Finished(result));
            }
        }
        std::mem::take(&mut self.out)
    }

    fn take(&mut self, input: Input) -> Result<(), Broken> {
        match input {
            Input::Event(actor, event) => self.event(actor, event),
            Input::Gone(actor, _) if self.drain.has_ended(actor) => Ok(()),
            Input::Gone(actor, reason) => {
                self.drain.end(actor);
                self.drain.fail(actor, reason, None);
                Ok(())
            }
            Input::StopRequested => self.stop(),
            Input::Published(step) => {
                self.saves.published(step);
                Ok(())
            }
            Input::PublishFailed(step, error) => {
                Err((ActorId::SCHEDULER, format!("checkpoint after step {step}: {error}")))
            }
        }
    }

    fn event(&mut self, actor: ActorId, event: Event) -> Result<(), Broken> {
        match event {
            Event::Failed { error, lost } => {
                self.drain.end(actor);
                self.drain.fail(actor, error, lost);
                return Ok(());
            }
            Event::Stopped => {
                self.drain.end(actor);
                if !self.drain.has_begun() {
                    return Err((actor, "stopped without being told to".into()));
                }
                return Ok(());
            }
            // What was on its way when the end began is of no use any more.
            _ if self.drain.has_begun() => return Ok(()),
            _ => {}
        }
        let computes = actor.role == Role::Encoder || actor.role == Role::Foundation;
        match event {
            Event::Ready if self.joining.remove(&actor) => Ok(()),
            Event::Measured { samples, bad } if actor.role == Role::Data => {
                self.intake.measured(actor.index, samples, bad).map_err(|error| (actor, error))
            }
            Event::Reduced(report) if computes => self.reduced(actor, report),
            Event::Applied { step } if computes => self.applied(actor, step),
            Event::Saved { step, files } if computes => self.saved(actor, step, files),
            event => Err((actor, format!("said {event:?} out of turn"))),
        }
    }

    fn reduced(&mut self, actor: ActorId, report: StepReport) -> Result<(), Broken> {
        let step = report.step;
        let in_flight = self.in_flight.get_mut(&step);
        let in_flight = in_flight.ok_or_else(|| (actor, format!("reduced step {step}, which is not in flight")))?;
        in_flight.reduced(actor, report).map_err(|error| (actor, error))
    }

    fn applied(&mut self, actor: ActorId, step: StepId) -> Result<(), Broken> {
        let in_flight = self.in_flight.get_mut(&step).filter(|_| step == self.current);
        let in_flight = in_flight.ok_or_else(|| (actor, format!("applied step {step} out of turn")))?;
        if in_flight.applied(actor, self.spec.pools).map_err(|error| (actor, error))? {
            let summary = in_flight.summary(self.spec.pools, self.costs.fitted());
            self.stream = in_flight.state(summary.costs.clone());
            self.out.push(Output::Step(Box::new(summary)));
            self.in_flight.remove(&step);
            self.current.0 += 1;
        }
        Ok(())
    }

    fn saved(&mut self, actor: ActorId, step: StepId, files: Vec<SavedFile>) -> Result<(), Broken> {
        let draft = self.saves.saved(step, actor, files, self.spec.pools).map_err(|error| (actor, error))?;
        self.out.extend(draft.map(Output::Publish));
        Ok(())
    }

    fn stop(&mut self) -> Result<(), Broken> {
        if self.drain.has_begun() {
            return Ok(());
        }
        if self.stop_requested {
            return Err((ActorId::SCHEDULER, "stopped at once, on a second request; no checkpoint was written".into()));
        }
        self.stop_requested = true;
        // After a step that is decided but not saved, its successor may have begun on the engines: that is in progress.
        let decided = self.in_flight.get(&self.current).is_some_and(InFlight::is_decided);
        let saved = self.last_saved == Some(self.current);
        let in_progress = self.current.0 + u64::from(decided && !saved);
        let is_planned = self.next_plan.0 > in_progress;
        self.end = self.end.min(StepId(in_progress + u64::from(is_planned)));
        Ok(())
    }

    /// Everything that has become possible.
    fn advance(&mut self) -> Result<(), Broken> {
        if self.drain.has_begun() {
            return Ok(());
        }
        let (skipped, verdict) = self.intake.consume();
        if !skipped.is_empty() {
            self.out.push(Output::Bad(skipped));
        }
        verdict.map_err(|error| (ActorId::SCHEDULER, error))?;
        if !self.joining.is_empty() {
            if self.stop_requested {
                self.drain.begin(Outcome::Preempted);
            }
            return Ok(());
        }
        self.plan()?;
        self.read();
        self.decide()?;
        self.finish();
        Ok(())
    }

    fn plan(&mut self) -> Result<(), Broken> {
        while self.next_plan < self.end && self.next_plan.0 <= self.current.0 + self.spec.prefetch_steps as u64 {
            let Some(batch) = self.intake.next_batch() else { break };
            let step = self.next_plan;
            if let Batch::Samples(samples) = &batch.batch {
                for sample in samples {
                    assert!(self.last_planned < Some(sample.id), "sample {} is planned once", sample.id);
                    self.last_planned = Some(sample.id);
                }
            }
            let plan = plan_step(&self.spec.plan, step, &batch.batch, batch.cursor)
                .map_err(|error| (ActorId::SCHEDULER, format!("step {step}: {error}")))?;
            let balance = StepBalance::of(&self.spec.plan, &plan);
            let plan = Arc::new(plan);
            self.send_to_all(&Command::Plan(plan.clone()));
            self.in_flight.insert(step, InFlight::new(plan, batch.held, balance));
            self.next_plan.0 += 1;
        }
        Ok(())
    }

    fn read(&mut self) {
        let to_plan = self.end.0.saturating_sub(self.next_plan.0);
        let num_batches = to_plan.min(self.spec.prefetch_steps as u64 + 1) as usize;
        while let Some(window) = self.intake.request(num_batches) {
            for actor in self.spec.pools.data_actors() {
                self.out.push(Output::Send(actor, window.command()));
            }
        }
    }

    fn decide(&mut self) -> Result<(), Broken> {
        let step = self.current;
        // Engines may have reduced a step beyond a requested end: it is dropped with them.
        let Some(in_flight) = self.in_flight.get_mut(&step).filter(|_| step < self.end) else { return Ok(()) };
        let Some(decision) = in_flight.decide(self.spec.pools, self.spec.clip_grad) else { return Ok(()) };
        self.costs.observe(&self.spec.plan, &in_flight.plan, &in_flight.timings());
        self.costs.apply(&mut self.spec.plan);
        let state = in_flight.state(self.costs.fitted());
        match decision.commit {
            Some(commit) => {
                self.num_skipped_in_row = 0;
                self.send_to_compute(&Command::Commit(commit));
            }
            None => {
                self.num_skipped_in_row += 1;
                if self.num_skipped_in_row > self.spec.max_nonfinite {
                    let samples = in_flight.samples();
                    let cause = format!(
                        "step {step}: loss {} and gradient norm {} are not both finite; {} steps in a row, more than \
                         `train.on_nonfinite.max_consecutive` = {}; samples {:?}",
                        decision.loss,
                        decision.grad_norm,
                        self.num_skipped_in_row,
                        self.spec.max_nonfinite,
                        samples.iter().map(|sample| sample.0).collect::<Vec<_>>(),
                    );
                    return Err((ActorId::SCHEDULER, cause));
                }
                self.send_to_compute(&Command::Abort { step });
            }
        }
        let every = self.spec.checkpoint_every;
        let done = step.0 + 1;
        if done == self.end.0 || (every > 0 && done.is_multiple_of(every)) {
            self.save(step, state);
        }
        Ok(())
    }

    fn save(&mut self, step: StepId, state: SchedulerState) {
        let dir = self.saves.begin(step, state, &self.spec.checkpoint_dir);
        self.out.push(Output::Prepare(step, dir.clone()));
        self.send_to_compute(&Command::Save { step, dir });
        self.last_saved = Some(step);
    }

    /// Ends the run after its last step, once that is saved and published.
    fn finish(&mut self) {
        if self.current < self.end {
            return;
        }
        // Stopped while the engines had nothing to do: what they have is the last step's.
        if let Some(last) = self.current.0.checked_sub(1).map(StepId)
            && self.current > self.spec.first_step
            && self.last_saved != Some(last)
        {
            self.save(last, self.stream.clone());
        }
        if self.saves.is_empty() {
            self.drain.begin(if self.current.0 < self.spec.steps { Outcome::Preempted } else { Outcome::Completed });
        }
    }

    fn send_to_all(&mut self, command: &Command) {
        let send = |actor| Output::Send(actor, command.clone());
        let live = self.spec.pools.actors().filter(|&actor| !self.drain.has_ended(actor));
        self.out.extend(live.map(send));
    }

    fn send_to_compute(&mut self, command: &Command) {
        self.out.extend(self.spec.pools.compute_actors().map(|actor| Output::Send(actor, command.clone())));
    }
}
