//! Checks the messages of encoders, and decides what happens to an encoder that sends wrong ones.
//!
//! An encoder can be replaced, so none of its messages may end or change a run out of turn. Every field is compared with the
//! encoder's plan before the message is accepted; an encoder with too many violations is removed. The tensors that it sends are
//! checked by their receivers, which report what they refused. The rest of the run is one gang: a wrong message there is a bug, and
//! ends the run by name.

use super::encoder_pool::EncoderPool;
use super::step::InFlight;
use crate::files::is_inner_name;
use crate::message::{ActorId, Epoch, Event, SavedFile, StepId, StepReport, Timings, UnitId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Number of violations after which an encoder is excluded.
const MAX_VIOLATIONS: usize = 3;

/// Number of refused messages per encoder.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Trust(BTreeMap<ActorId, usize>);

impl Trust {
    /// Records a refused message; returns whether it was one too many.
    pub fn violated(&mut self, actor: ActorId) -> bool {
        let count = self.0.entry(actor).or_default();
        *count += 1;
        *count >= MAX_VIOLATIONS
    }
}

/// The state that the messages of an encoder are compared with.
pub(super) struct Told<'a> {
    pub actor: ActorId,
    pub pool: &'a EncoderPool,
    pub in_flight: &'a BTreeMap<StepId, InFlight>,
    /// True if it was expected from the beginning and is not ready.
    pub is_joining: bool,
    /// True if it reduces gradients in the current step.
    pub is_trained: bool,
    pub current: StepId,
    pub next_plan: StepId,
}

impl Told<'_> {
    /// # Errors
    /// The message is wrong, and in which way.
    pub fn expect(&self, event: &Event) -> Result<(), String> {
        match event {
            Event::Ready => self.ready(),
            Event::At { unit } => self.at(*unit),
            Event::Finished { step, epoch } => self.of_epoch(*step, *epoch),
            Event::Broken { step, epoch, .. } => self.broken(*step, *epoch),
            Event::Reduced(report) => self.reduced(report),
            Event::Applied { step } => self.applied(*step),
            Event::Saved { files, .. } => saved(files),
            Event::NoFeatures { .. } if !self.pool.is_cached() => {
                Err("reported missing features, although it has to compute them".into())
            }
            Event::Measured { .. } | Event::Lost { .. } | Event::Refused { .. } => {
                Err(format!("sent {event:?}, which encoders do not send"))
            }
            // Of its own end it is believed.
            _ => Ok(()),
        }
    }

    fn is_member(&self) -> bool {
        self.pool.members().contains(&self.actor.index)
    }

    fn ready(&self) -> Result<(), String> {
        let is_first = self.is_joining || !(self.is_member() || self.pool.is_ready(self.actor.index));
        if is_first { Ok(()) } else { Err("reported twice that it is ready".into()) }
    }

    /// Units are taken from nobody but who has left.
    fn at(&self, unit: Option<UnitId>) -> Result<(), String> {
        let Some(unit) = unit.filter(|_| self.is_member()) else { return Ok(()) };
        let own = self.in_flight.get(&unit.step).and_then(|step| step.unit_of(self.actor, unit));
        own.map(drop).ok_or_else(|| format!("worked on {unit}, which is not assigned to it"))
    }

    fn of_epoch(&self, step: StepId, epoch: Epoch) -> Result<(), String> {
        if epoch > self.pool.epoch() {
            return Err(format!("named epoch {epoch}, which has not begun"));
        }
        if step >= self.next_plan && !self.in_flight.contains_key(&step) {
            return Err(format!("named step {step}, which is not planned"));
        }
        Ok(())
    }

    fn broken(&self, step: StepId, epoch: Epoch) -> Result<(), String> {
        self.of_epoch(step, epoch)?;
        let is_its_turn = self.is_member() && step == self.current && self.pool.is_reducing();
        if epoch == self.pool.epoch() && !is_its_turn {
            return Err(format!("failed to reduce step {step}, which it was not told to reduce"));
        }
        Ok(())
    }

    fn reduced(&self, report: &StepReport) -> Result<(), String> {
        self.of_epoch(report.step, report.epoch)?;
        if !self.is_member() || report.epoch < self.pool.epoch() {
            // Late, and not heard.
            return Ok(());
        }
        // Frozen ones are not told, and may be ahead.
        let is_turn = !self.is_trained || (report.step == self.current && self.pool.is_reducing());
        let in_flight = self.in_flight.get(&report.step).filter(|_| is_turn);
        let was_told = in_flight.is_some_and(|step| !step.is_decided());
        if !was_told || in_flight.is_some_and(|step| step.has_reduced(self.actor)) {
            return Err(format!("reduced step {} out of order", report.step));
        }
        let StepReport { loss, grad_square_sum, routing, timings, .. } = report;
        let Timings { busy, idle, units, packs, .. } = timings;
        if *loss != 0.0 || routing.is_some() {
            return Err("reported a loss, which encoders do not compute".into());
        }
        // What is not a number is a step's trouble, not a lie.
        if *grad_square_sum < 0.0 || (*grad_square_sum != 0.0 && !self.is_trained) {
            return Err(format!("reported an invalid squared gradient norm: {grad_square_sum}"));
        }
        if ![busy, idle, units, packs].into_iter().all(|seconds| seconds.is_finite() && *seconds >= 0.0) {
            return Err(format!("reported invalid times: {timings:?}"));
        }
        Ok(())
    }

    fn applied(&self, step: StepId) -> Result<(), String> {
        let is_awaited = self.in_flight.get(&step).is_some_and(|in_flight| in_flight.awaits(self.actor));
        // One that is let go ends what it had begun.
        let was_told = (step == self.current && is_awaited) || (!self.is_member() && step <= self.current);
        if was_told { Ok(()) } else { Err(format!("applied step {step} out of order")) }
    }
}

fn saved(files: &[SavedFile]) -> Result<(), String> {
    match files.iter().find(|file| !is_inner_name(&file.name)) {
        Some(file) => Err(format!("saved {:?}, which is not a file name", file.name)),
        None => Ok(()),
    }
}
