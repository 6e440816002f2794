//! The state machine: what each input does in each phase.

use super::costs::Costs;
use super::crash_attribution::CrashAttribution;
use super::drain::Drain;
use super::encoder_pool::{EncoderPool, EncoderPools};
use super::evaluations::Evaluations;
use super::intake::Intake;
use super::probe::NonFiniteSteps;
use super::save::Saves;
use super::step::InFlight;
use super::trust::Trust;
use super::{CoordinatorSpec, Input, Outcome, Output, SchedulerState, StepBalance};
use crate::message::{ActorId, Command, Epoch, Event, Role, SKIPPED, SampleId, StepId, StepPlan, StepReport, UnitId};
use crate::schedule::{Batch, PlanError, PlanSpec, plan_step};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

mod evaluating;
mod membership;
mod probing;
mod saving;
mod snapshot;
mod stepping;

/// Makes a step's plan from its batch and cursor: [`plan_step`], or a cache of the same plans.
pub type Planner = Box<dyn FnMut(&PlanSpec, StepId, Batch, SampleId) -> Result<StepPlan, PlanError> + Send>;

/// A run from the first `Ready` to the last `Stopped`.
#[derive(Serialize, Deserialize)]
pub struct Coordinator {
    spec: CoordinatorSpec,
    #[serde(skip, default = "snapshot::planner")]
    planner: Planner,
    /// Actors that are not ready yet.
    joining: BTreeSet<ActorId>,
    intake: Intake,
    costs: Costs,
    encoders: EncoderPools,
    trust: Trust,
    crashes: CrashAttribution,
    /// The first step that not all engines have applied.
    current: StepId,
    /// The first step that is not planned.
    next_plan: StepId,
    /// The run ends before this step.
    end: StepId,
    /// The run ends after the step in progress, with a checkpoint.
    stop_requested: bool,
    /// The run's user has asked for that, and not only an actor whose process is asked to stop.
    user_has_asked: bool,
    in_flight: BTreeMap<StepId, InFlight>,
    nonfinite: NonFiniteSteps,
    /// Position of the stream after the last applied step; fitted costs are stored separately.
    stream: SchedulerState,
    last_planned: Option<SampleId>,
    saves: Saves,
    evaluations: Evaluations,
    drain: Drain,
    finished: bool,
    /// Empty between inputs.
    #[serde(skip)]
    out: Vec<Output>,
}

/// Something that ends the run: who, and why.
type Broken = (ActorId, String);

impl Coordinator {
    /// Waits until all actors of the run are ready, and continues from the state in `spec`.
    pub fn new(spec: CoordinatorSpec) -> Self {
        Self::with_planner(spec, Box::new(plan_step))
    }

    /// Replaces [`plan_step`] by another planner, whose plans must be the same.
    pub(crate) fn with_planner(mut spec: CoordinatorSpec, planner: Planner) -> Self {
        let evaluations = Evaluations::new(spec.evaluation.clone(), spec.steps, spec.state.evaluated);
        let end = if evaluations.stops() { spec.first_step.0 } else { spec.steps.max(spec.first_step.0) };
        let costs = Costs::new(&spec);
        costs.apply(&mut spec.plan);
        let begun_with = spec.first_step.0.checked_sub(1).filter(|_| !spec.is_kept);
        Self {
            joining: spec.pools.actors().collect(),
            intake: Intake::new(&spec),
            costs,
            encoders: EncoderPools::new(&spec),
            trust: Trust::default(),
            crashes: CrashAttribution::new(if spec.is_elastic() { &spec.state.poison_items } else { &[] }),
            current: spec.first_step,
            next_plan: spec.first_step,
            end: StepId(end),
            stop_requested: false,
            user_has_asked: false,
            in_flight: BTreeMap::new(),
            nonfinite: NonFiniteSteps::since(begun_with.map(|last| (StepId(last), spec.state.clone()))),
            stream: spec.state.clone(),
            last_planned: None,
            saves: Saves::new(spec.max_save_failures),
            evaluations,
            drain: Drain::new(spec.pools.actors()),
            finished: false,
            out: Vec::new(),
            planner,
            spec,
        }
    }

    /// Returns the actors that have not ended.
    pub fn alive(&self) -> Vec<ActorId> {
        self.drain.alive().collect()
    }

    /// Returns whether the run's user has asked it to stop.
    pub fn user_has_asked(&self) -> bool {
        self.user_has_asked
    }

    /// Returns the encoders that are to be removed and have not ended.
    pub fn leaving(&self) -> Vec<ActorId> {
        let retiring = self.encoders.iter().flat_map(EncoderPool::retiring);
        retiring.filter(|actor| !self.drain.has_ended(*actor)).collect()
    }

    /// Returns the first step that not all engines have applied.
    pub fn current_step(&self) -> StepId {
        self.current
    }

    /// Handles an input; returns what must be done because of it, in order.
    pub fn on(&mut self, input: Input) -> Vec<Output> {
        if !self.finished {
            let actor = match &input {
                Input::Event(actor, _) | Input::Gone(actor, _) => *actor,
                _ => ActorId::SCHEDULER,
            };
            let known = match actor.role {
                Role::Scheduler => true,
                Role::Encoder => self.encoders.get(actor.pool).is_some(),
                Role::Data | Role::Foundation => self.spec.pools.contains(actor),
            };
            assert!(known, "{actor} does not belong to this run");
            if actor.role == Role::Encoder && self.drain.has_ended(actor) {
                // Excluded: what it says is late.
                return Vec::new();
            }
            let draining = self.drain.has_begun();
            let of_save = matches!(&input, Input::Event(_, Event::Saved { .. } | Event::SaveFailed { .. }));
            let taken = match self.refusal(&input) {
                Some(why) => self.distrust(actor, &why),
                None => self.take(input).or_else(|(actor, cause)| match of_save && self.may_lose(actor) {
                    true => self.distrust(actor, &cause),
                    false => Err((actor, cause)),
                }),
            };
            if let Err((actor, cause)) = taken.and_then(|()| self.advance()) {
                self.drain.fail(actor, cause, None);
            }
            if self.drain.has_begun() && !draining {
                self.send_to_all(&Command::Stop);
            }
            if let Some(result) = self.drain.finished() {
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
            Input::Gone(actor, reason) if self.may_lose(actor) => self.exclude(actor, reason),
            Input::Gone(actor, reason) => {
                self.drain.lose(actor, reason);
                Ok(())
            }
            Input::Joined(actor) => {
                self.drain.join(actor);
                if self.drain.has_begun() {
                    self.out.push(Output::Send(actor, Command::Stop));
                }
                Ok(())
            }
            Input::Retire(actors) => {
                actors.into_iter().for_each(|actor| self.encoders.of(actor).retire(actor.index));
                Ok(())
            }
            Input::GraceOver(name, epoch) => {
                self.grace_over(name, epoch);
                Ok(())
            }
            Input::Doubted(doubt) => self.doubted(doubt),
            Input::StopRequested => self.asked_by_user(),
            Input::SaveRequested => {
                self.saves.want();
                Ok(())
            }
            Input::Published(step, to) => {
                self.saves.published((step, to));
                Ok(())
            }
            Input::PublishFailed(step, to, error) => {
                let ended = self.saves.unpublished((step, to), error);
                self.save_ended(ended)
            }
            Input::RetrySave => {
                self.saves.retry();
                Ok(())
            }
        }
    }

    fn event(&mut self, actor: ActorId, event: Event) -> Result<(), Broken> {
        match event {
            // Whom it has lost is another's to say.
            Event::Failed { error, lost } if self.may_lose(actor) => return self.lose(actor, error, lost),
            Event::Failed { error, lost } => {
                self.drain.end(actor);
                self.drain.fail(actor, error, lost);
                return Ok(());
            }
            Event::Stopped => {
                self.drain.end(actor);
                let was_let_go = actor.role == Role::Encoder && !self.encoders.is_member(actor);
                if !self.drain.has_begun() && !was_let_go {
                    if self.encoders.is_elastic(actor) && !self.joining.contains(&actor) {
                        return self.lose(actor, "stopped without being told to".into(), None);
                    }
                    return Err((actor, "stopped without being told to".into()));
                }
                if was_let_go && !self.drain.has_begun() {
                    // It may have said again that it is ready, and does not join any more.
                    self.encoders.of(actor).lose(actor.index);
                    self.await_no_more(actor);
                }
                return Ok(());
            }
            // What was on its way when the end began is of no use any more.
            _ if self.drain.has_begun() => return Ok(()),
            _ => {}
        }
        let is_member = self.encoders.is_member(actor);
        let computes = is_member || actor.role == Role::Foundation;
        let epoch = self.encoders.get(actor.pool).map_or(Epoch(0), EncoderPool::epoch);
        match event {
            Event::Leaving => {
                self.asked_to_leave(actor);
                Ok(())
            }
            Event::Ready if self.joining.remove(&actor) => Ok(()),
            Event::Ready if actor.role == Role::Encoder && !is_member => {
                self.encoders.of(actor).ready(actor.index);
                Ok(())
            }
            Event::Lost { peer, reason } => self.lost_by(actor, peer, reason),
            Event::Refused { peer, reason, lacks } => self.refused(actor, peer, &reason, lacks),
            Event::NoFeatures { error, .. } if is_member => self.lacks_features(actor, error),
            event @ (Event::Saved { .. } | Event::SaveFailed { .. }) if computes || actor.role == Role::Encoder => {
                self.saved(actor, event)
            }
            // One that is let go ends what it had begun.
            Event::Applied { .. } if actor.role == Role::Encoder && !is_member => {
                self.await_no_more(actor);
                Ok(())
            }
            _ if actor.role == Role::Encoder && !is_member => Ok(()),
            Event::At { unit } => {
                self.crashes.at(actor, unit);
                Ok(())
            }
            Event::Finished { step, epoch: of } | Event::Broken { step, epoch: of, .. }
                if actor.role == Role::Encoder && (of != epoch || !self.in_flight.contains_key(&step)) =>
            {
                Ok(())
            }
            Event::Reduced(report) if actor.role == Role::Encoder && report.epoch != epoch => Ok(()),
            Event::Finished { step, .. } if is_member => {
                self.in_flight.get_mut(&step).expect("looked at above").finished(actor);
                Ok(())
            }
            Event::Broken { error, .. } if is_member => {
                let pool = self.encoders.of(actor);
                match pool.broke(actor.index, &error) {
                    // It may be the one that cannot.
                    Err(error) if pool.members().len() > 1 => self.exclude(actor, error),
                    result => result.map_err(|error| (actor, error)),
                }
            }
            Event::Measured { samples, bad } if actor.role == Role::Data => {
                self.intake.measured(actor.index, samples, bad).map_err(|error| (actor, error))
            }
            Event::Reduced(report) if computes => self.reduced(actor, report),
            Event::Applied { step } if computes => self.applied(actor, step),
            event => Err((actor, format!("sent {event:?} out of order"))),
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
        let in_flight = in_flight.ok_or_else(|| (actor, format!("applied step {step} out of order")))?;
        if in_flight.applied(actor).map_err(|error| (actor, error))? {
            self.close_step();
        }
        Ok(())
    }

    /// Closes the current step, which all engines have applied.
    fn close_step(&mut self) {
        let in_flight = self.in_flight.remove(&self.current).expect("the current step is in flight");
        if in_flight.is_evaluation() {
            return self.evaluations.closed();
        }
        let mut summary = in_flight.summary(self.stream.ledger, self.costs.fitted());
        summary.stragglers = self.encoders.iter().flat_map(|pool| pool.speeds.stragglers()).collect();
        self.stream = in_flight.state(&self.stream, summary.ledger, summary.costs.clone());
        self.stream.evaluated = self.evaluations.evaluated();
        if summary.applied {
            self.nonfinite.good = Some((self.current, self.stream.clone()));
        }
        self.out.push(Output::Step(Box::new(summary)));
        self.current.0 += 1;
    }

    /// Handles a request of the run's user, whose second one ends the run at once.
    ///
    /// # Errors
    /// It is the second one.
    fn asked_by_user(&mut self) -> Result<(), Broken> {
        if self.drain.has_begun() {
            return Ok(());
        }
        if std::mem::replace(&mut self.user_has_asked, true) {
            return Err((ActorId::SCHEDULER, "stopped at once, on a second request; no checkpoint was written".into()));
        }
        self.stop();
        Ok(())
    }

    /// Ends the run after the step in progress, unless it is to end already.
    fn stop(&mut self) {
        if self.drain.has_begun() || std::mem::replace(&mut self.stop_requested, true) || self.is_probing() {
            return;
        }
        // After a step that is decided but not saved, its successor may have begun on the engines: that is in progress.
        let decided = self.in_flight.get(&self.current).is_some_and(InFlight::ends_step);
        let saved = self.saves.has(self.current);
        let in_progress = self.current.0 + u64::from(decided && !saved);
        let is_planned = self.next_plan.0 > in_progress;
        self.end = self.end.min(StepId(in_progress + u64::from(is_planned)));
    }

    /// Returns the encoders that are members, pool by pool in order of rank, and foundations.
    fn compute_actors(&self) -> Vec<ActorId> {
        self.encoders.members().chain(self.spec.pools.foundation_actors()).collect()
    }

    /// Sends a plan to everyone who takes part. Nobody computes the units in `skipped`; `held` are the positions that a packed
    /// stream holds back after its batch.
    fn begin_step(&mut self, mut plan: StepPlan, skipped: &[UnitId], held: Vec<SampleId>) {
        let balance = StepBalance::of(&self.spec.plan, &plan);
        plan.units.iter_mut().filter(|unit| skipped.contains(&unit.id)).for_each(|unit| unit.encoder.index = SKIPPED);
        let plan = Arc::new(plan);
        self.in_flight.insert(plan.step, InFlight::new(plan.clone(), held, balance));
        self.send_to_all(&Command::Plan(plan));
    }

    /// Sends a command to everyone who takes part; the last command goes to all who are alive.
    fn send_to_all(&mut self, command: &Command) {
        let takes_part = |actor: &ActorId| {
            let is_member = actor.role != Role::Encoder || self.encoders.is_member(*actor);
            is_member || *command == Command::Stop
        };
        let send = |actor| Output::Send(actor, command.clone());
        self.out.extend(self.drain.alive().filter(takes_part).map(send));
    }

    fn send_to_data(&mut self, command: &Command) {
        self.out.extend(self.spec.pools.data_actors().map(|actor| Output::Send(actor, command.clone())));
    }

    fn send_to_compute(&mut self, command: &Command) {
        self.out.extend(self.compute_actors().into_iter().map(|actor| Output::Send(actor, command.clone())));
    }
}
