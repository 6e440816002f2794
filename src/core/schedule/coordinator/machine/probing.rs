//! The part of the machine that handles too many consecutive steps that are not finite ([`NonFiniteSteps`](super::NonFiniteSteps)), until
//! the run ends.

use super::{Broken, Coordinator, Output};
use crate::message::{ActorId, SaveTo, UnitId};
use crate::schedule::coordinator::probe::Stage;
use crate::schedule::{PlanSpec, plan_step};

impl Coordinator {
    /// Takes the next action of the probe, instead of planning further steps.
    pub(super) fn probe_on(&mut self) -> Result<(), Broken> {
        let wants_another = self.wants_another();
        let Some(probe) = &mut self.nonfinite.probe else { return Ok(()) };
        match probe.stage {
            Stage::Draining if self.in_flight.is_empty() && !wants_another => {
                let window = self.intake.read_again(probe.found.samples.clone());
                probe.stage = Stage::Reading;
                self.send_to_data(&window.command());
            }
            Stage::Reading => match self.intake.take_again(&probe.found.samples) {
                None => {}
                Some(false) => self.conclude(),
                Some(true) => self.compute_again()?,
            },
            Stage::Computing(step) if !self.in_flight.contains_key(&step) => self.conclude(),
            _ => {}
        }
        let saves = self.nonfinite.probe.as_ref().is_some_and(|probe| probe.stage == Stage::Saving);
        if saves && self.saves.is_empty() && !self.saves.waits() {
            match self.nonfinite.good.clone() {
                // Not before: an earlier checkpoint of this step may still be on its way to its folder.
                Some((step, state)) if !self.saves.has_since(step) => self.save(step, SaveTo::Disk, state),
                _ => self.end_of_probe(),
            }
        }
        Ok(())
    }

    fn compute_again(&mut self) -> Result<(), Broken> {
        let Some(probe) = &self.nonfinite.probe else { return Ok(()) };
        let step = self.next_plan;
        // Noise levels belong to steps: the samples keep those that they had.
        let spec = PlanSpec { sigma: None, ..self.spec.plan.clone() };
        let mut plan = plan_step(&spec, step, probe.batch.clone(), self.stream.cursor)
            .map_err(|error| (ActorId::SCHEDULER, format!("step {step}: {error}")))?;
        self.place(&mut plan);
        let skipped: Vec<UnitId> = self.crashes.poison_units(&plan).into_iter().map(|unit| unit.id).collect();
        self.nonfinite.probe.iter_mut().for_each(|probe| probe.stage = Stage::Computing(step));
        self.next_plan.0 += 1;
        self.end = self.end.max(self.next_plan);
        self.begin_step(plan, &skipped, self.stream.held.clone());
        Ok(())
    }

    /// Judges what was found; it remains that the last good weights are on disk, with their position in the stream.
    fn conclude(&mut self) {
        let Some(probe) = &mut self.nonfinite.probe else { return };
        probe.judge();
        probe.stage = Stage::Saving;
        probe.found.last_applied = self.nonfinite.good.as_ref().map(|(step, _)| *step);
    }

    fn end_of_probe(&mut self) {
        let Some(probe) = &self.nonfinite.probe else { return };
        let found = &probe.found;
        let cause = format!(
            "step {}: loss {} and gradient norm {} are not both finite; {} steps in a row, more than \
             `train.on_nonfinite.max_consecutive` = {}; {}; samples {:?}",
            found.step,
            found.loss,
            found.grad_norm,
            found.num_in_row,
            self.spec.max_nonfinite,
            found.verdict,
            found.samples.iter().map(|sample| sample.0).collect::<Vec<_>>(),
        );
        self.out.push(Output::NonFinite(found.clone()));
        self.drain.fail_numbers(cause);
    }

    /// Returns whether another batch is to be computed on the same weights: the next one, if none was planned ahead.
    pub(super) fn wants_another(&self) -> bool {
        let Some(probe) = &self.nonfinite.probe else { return false };
        let is_next = self.next_plan.0 == probe.found.step.0 + 1;
        probe.stage == Stage::Draining && is_next && self.next_plan < self.end && !self.stop_requested
    }

    /// Returns whether the cause is determined, and the engines are told to save the last good weights if they are to.
    pub(super) fn has_probed(&self) -> bool {
        let is_saving = self.nonfinite.probe.as_ref().is_some_and(|probe| probe.stage == Stage::Saving);
        let good = self.nonfinite.good.as_ref();
        is_saving && (self.saves.waits() || good.is_none_or(|(step, _)| self.saves.has_since(*step)))
    }

    /// Returns whether the cause of steps that are not finite is being determined; the run then ends.
    pub(super) fn is_probing(&self) -> bool {
        self.nonfinite.probe.is_some()
    }
}
