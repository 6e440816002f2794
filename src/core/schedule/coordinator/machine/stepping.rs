//! The part of the machine that advances the run: it does everything that has become possible after an input, from planning a step to
//! deciding it.

use super::{Broken, Coordinator, InFlight, Outcome, Output};
use crate::message::{ActorId, Command, SaveTo, StepId, StepPlan, Unit};
use crate::schedule::Batch;
use crate::schedule::coordinator::Formed;
use crate::schedule::coordinator::encoder_pool::EncoderPool;
use crate::schedule::plan::check_credits;

impl Coordinator {
    /// Does everything that has become possible.
    pub(super) fn advance(&mut self) -> Result<(), Broken> {
        if self.drain.has_begun() {
            return Ok(());
        }
        let (skipped, verdict) = self.intake.consume();
        if !skipped.is_empty() {
            self.out.push(Output::Bad(skipped));
        }
        verdict.map_err(|error| (ActorId::SCHEDULER, error))?;
        if self.encoders.iter().any(EncoderPool::is_ending) {
            self.stop();
        }
        if !self.joining.is_empty() {
            if self.stop_requested {
                self.drain.begin(Outcome::Preempted);
            }
            return Ok(());
        }
        self.advance_epochs()?;
        if self.encoders.is_paused() {
            // A checkpoint that is being written is kept, unless it lacks an encoder's part.
            let is_writing = !self.saves.is_empty() && !self.saves.lacks_writer();
            match self.needs_encoders() {
                true if self.stop_requested && !is_writing => self.drain.begin(Outcome::Preempted),
                true => {}
                false => {
                    self.probe_on()?;
                    self.finish();
                }
            }
            return Ok(());
        }
        self.evaluate()?;
        self.plan()?;
        self.read();
        self.reduce();
        self.decide();
        self.finish();
        Ok(())
    }

    /// Plans steps ahead, as far as samples are available.
    fn plan(&mut self) -> Result<(), Broken> {
        if self.is_probing() && !self.wants_another() {
            return self.probe_on();
        }
        self.count_encoders();
        while self.may_plan() {
            let Some(formed) = self.intake.next_batch() else { break };
            self.plan_step(formed)?;
        }
        Ok(())
    }

    /// Makes plans use the current number of encoders of elastic pools.
    fn count_encoders(&mut self) {
        for pool in self.encoders.iter().filter(|pool| pool.is_elastic() && !pool.workers().is_empty()) {
            let Some(planned) = self.spec.plan.encoder_pool(pool.name) else { continue };
            planned.replicas = pool.workers().len() as u32;
            if !self.spec.fixed_lanes {
                planned.num_lanes = planned.replicas * pool.speeds.lanes_per_encoder();
            }
        }
    }

    fn may_plan(&self) -> bool {
        (!self.is_probing() || self.wants_another())
            && self.next_plan < self.end
            && !self.is_to_evaluate()
            && self.next_plan.0 <= self.current.0 + self.spec.prefetch_steps as u64
    }

    /// Plans the next step and sends the plan.
    fn plan_step(&mut self, Formed { batch, cursor, held }: Formed) -> Result<(), Broken> {
        let step = self.next_plan;
        if let Batch::Samples(samples) = &batch {
            for sample in samples {
                assert!(self.last_planned < Some(sample.id), "sample {} is planned once", sample.id);
                self.last_planned = Some(sample.id);
            }
        }
        let mut plan = (self.planner)(&self.spec.plan, step, batch, cursor)
            .map_err(|error| (ActorId::SCHEDULER, format!("step {step}: {error}")))?;
        self.assign(&mut plan);
        let skipped = self.skip_poison_units(&plan)?;
        self.begin_step(plan, &skipped, held);
        self.next_plan.0 += 1;
        Ok(())
    }

    /// Assigns the units to the present encoders.
    fn assign(&mut self, plan: &mut StepPlan) {
        for pool in self.encoders.iter_mut() {
            // The first lanes of a step have a little more than the last ones: everyone has them in turn.
            let turn = if pool.is_elastic() { plan.step.0 as usize } else { 0 };
            let of_pool = plan.units.iter_mut().filter(|unit| pool.has(unit));
            of_pool.for_each(|unit| unit.encoder = pool.worker(unit.encoder.index, turn));
            let workers = pool.workers().to_vec();
            let of_pool: Vec<&Unit> = plan.units.iter().filter(|unit| pool.has(unit)).collect();
            let faster = match workers.is_empty() {
                true => None,
                false => pool.speeds.share_out(&self.spec.plan, &of_pool, &workers, self.spec.fixed_lanes),
            };
            let Some(faster) = faster else { continue };
            let mut units = plan.units.clone();
            let of_pool = units.iter_mut().filter(|unit| pool.has(unit));
            of_pool.zip(faster).for_each(|(unit, encoder)| unit.encoder.index = encoder);
            // Where that is too much for one edge it stays as it was.
            if check_credits(&self.spec.plan, &plan.packs, &units).is_ok() {
                plan.units = units;
            }
        }
    }

    fn read(&mut self) {
        if self.is_probing() && !self.wants_another() {
            return;
        }
        let to_plan = self.end.0.saturating_sub(self.next_plan.0);
        let num_batches = to_plan.min(self.spec.prefetch_steps as u64 + 1) as usize;
        while let Some(window) = self.intake.request(num_batches) {
            self.send_to_data(&window.command());
        }
    }

    /// Tells the encoders of a pool to reduce once all of them have finished. Frozen ones have nothing to reduce.
    fn reduce(&mut self) {
        if self.evaluates() {
            return;
        }
        let step = self.current;
        let Some(in_flight) = self.in_flight.get(&step).filter(|_| step < self.end) else { return };
        for pool in self.encoders.iter_mut().filter(|pool| pool.is_trained()) {
            let finished = !pool.members().is_empty() && in_flight.is_finished_by(pool.actors());
            if finished && !in_flight.is_decided() && !pool.is_reducing() {
                let command = Command::Reduce { step, epoch: pool.epoch() };
                self.out.extend(pool.actors().map(|actor| Output::Send(actor, command.clone())));
                pool.begin_reducing();
            }
        }
    }

    /// Decides the current step, or ends the current evaluation, when every engine has reported it.
    fn decide(&mut self) {
        let step = self.current;
        // Engines may have reduced a step beyond a requested end: it is dropped with them.
        let num_engines = self.encoders.num_members() + self.spec.pools.num_foundations() as usize;
        let may_be_decided = |in_flight: &InFlight| {
            (step < self.end || in_flight.is_evaluation()) && in_flight.may_be_decided(num_engines)
        };
        if !self.in_flight.get(&step).is_some_and(may_be_decided) {
            return;
        }
        if !self.evaluates() && self.waits_to_save(step) {
            return;
        }
        let engines = self.compute_actors();
        let Some(in_flight) = self.in_flight.get_mut(&step) else { return };
        if in_flight.is_evaluation() {
            if let Some(found) = in_flight.conclude(&engines) {
                self.evaluations.found(found);
                self.send_to_compute(&Command::Abort { step });
            }
            return;
        }
        let drops = self.nonfinite.probe.is_some();
        let decision = in_flight.decide(&engines, &self.spec.pools, self.spec.clip_grad, drops);
        let Some(decision) = decision else { return };
        let timings = in_flight.timings();
        for pool in self.encoders.iter_mut() {
            pool.decided();
            if pool.is_elastic() {
                pool.speeds.observe(&self.spec.plan, &in_flight.plan, &timings);
            }
        }
        self.costs.observe(&self.spec.plan, &in_flight.plan, &timings);
        self.costs.apply(&mut self.spec.plan);
        match decision.commit {
            Some(_) => self.nonfinite.finite(),
            None => {
                let batch = || in_flight.batch(self.spec.look_ahead.is_some());
                let found = (decision.loss, decision.grad_norm);
                self.nonfinite.skipped(step, found, self.spec.max_nonfinite, batch);
            }
        }
        match self.is_probing() {
            // What is planned is computed and dropped, even if a requested stop would have ended the run before it.
            true => self.end = self.end.max(self.next_plan),
            false => self.save_with(step),
        }
        let in_flight = &self.in_flight[&step];
        self.out.extend(engines.into_iter().map(|actor| Output::Send(actor, in_flight.command_for(actor))));
    }

    /// Returns whether a step has to wait because its state is to be saved and too many checkpoints are not published: a disk that is
    /// slower than steps slows them down rather than being filled.
    fn waits_to_save(&mut self, step: StepId) -> bool {
        let waits = !self.is_probing() && self.saves.is_full() && !self.due(step).is_empty();
        if waits && self.saves.hold(step) {
            self.out.push(Output::SaveWaits(step));
        }
        waits
    }

    /// Returns where the state after `step` is to be saved.
    fn due(&self, step: StepId) -> Vec<SaveTo> {
        let done = step.0 + 1;
        let in_memory =
            self.spec.snapshots.as_ref().is_some_and(|(_, every)| done.is_multiple_of(*every) && done < self.end.0);
        let on_disk =
            (done == self.end.0 && self.saves_last()) || self.spec.save_points.is_due(done) || self.saves.is_wanted();
        let places = [(in_memory, SaveTo::Memory), (on_disk, SaveTo::Disk)];
        places.into_iter().filter_map(|(is, to)| is.then_some(to)).collect()
    }

    /// Tells the engines to save as soon as they have applied `step`, if a save is due. It is sent before that step ends, so that
    /// no rank begins the next step, in which ranks wait for each other, while others save together.
    fn save_with(&mut self, step: StepId) {
        for to in self.due(step) {
            let in_flight = &self.in_flight[&step];
            let ledger = in_flight.ledger(self.stream.ledger);
            let mut state = in_flight.state(&self.stream, ledger, self.costs.fitted());
            state.evaluated = self.evaluations.evaluated();
            self.save(step, to, state);
        }
    }

    fn saves_last(&self) -> bool {
        self.spec.save_points.saves_last(self.stop_requested)
    }

    /// Returns whether all steps and evaluations are done.
    fn has_computed_all(&self) -> bool {
        self.current >= self.end && !self.is_probing() && !self.evaluations.is_open() && !self.is_to_evaluate()
    }

    /// Returns the last step if the engines are still to save it: the run was stopped while they had nothing to do, and what they
    /// have is the last step's.
    fn unsaved_last(&self) -> Option<StepId> {
        let last = self.current.0.checked_sub(1).map(StepId)?;
        let is_due = (self.saves_last() || self.saves.is_wanted()) && self.is_unkept();
        (is_due && !self.saves.has(last) && !self.saves.waits()).then_some(last)
    }

    /// Returns whether encoders still have something to do: all else is writing what they have no part in, and publishing.
    pub(super) fn needs_encoders(&self) -> bool {
        let is_done = if self.is_probing() { self.has_probed() } else { self.has_computed_all() };
        let is_saved = self.is_probing() || self.unsaved_last().is_none();
        !is_done || !is_saved || self.saves.lacks_writer()
    }

    /// Ends the run after its last step, once that is saved and published.
    fn finish(&mut self) {
        if !self.has_computed_all() {
            return;
        }
        if let Some(last) = self.unsaved_last() {
            self.save(last, SaveTo::Disk, self.stream.clone());
        }
        if self.saves.is_empty() && !self.saves.waits() {
            // A stop in the last step leaves the evaluation after it to whoever resumes the run.
            let is_evaluated = !self.evaluations.is_due(self.current);
            let is_complete = (self.current.0 >= self.spec.steps && is_evaluated) || self.evaluations.stops();
            self.drain.begin(if is_complete { Outcome::Completed } else { Outcome::Preempted });
        }
    }
}
