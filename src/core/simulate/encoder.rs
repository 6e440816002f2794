//! An encoder: units forward as their pixels come, those of one replica in deadline order, so that a pack's features
//! never wait for credit that a later pack's hold; backward in each lane's order as gradients come.

use super::Activity;
use super::edges::{CargoKind, Parcel};
use super::rank::Job;
use super::simulation::Simulation;
use super::step::{NONE, Step, UnitState};
use std::cmp::Reverse;

impl Simulation<'_> {
    /// Takes pixels of a unit, which is encoded when it has all and its turn comes.
    pub(super) fn pixels_arrive(&mut self, parcel: &Parcel) {
        let planned = self.steps.get_mut(parcel.step);
        let unit = &mut planned.units[parcel.index as usize];
        unit.pixels_missing -= 1;
        if unit.pixels_missing == 0 && unit.order_turn {
            let encoder = unit.encoder;
            self.encoders[encoder as usize].ready.push(Reverse((parcel.step, parcel.index)));
        }
    }

    /// Begins the next job of an encoder; false: there is none.
    pub(super) fn choose_encoder(&mut self, rank: u32, encoder: u32) -> bool {
        let version = self.ranks[rank as usize].version;
        // A trained encoder encodes a step with the parameters that all steps before have made; a frozen one goes on to
        // the next step when it has encoded all of one.
        let is_encoded = |step: &Step| step.units_to_encode[encoder as usize] == 0;
        let is_due = |step: u64| match self.encoders[encoder as usize].is_trained {
            true => step == version,
            false => (version..step).all(|before| self.steps.find(before).is_none_or(is_encoded)),
        };
        if let Some(&Reverse((step, unit))) = self.encoders[encoder as usize].ready.peek().filter(|top| is_due(top.0.0))
        {
            self.encoders[encoder as usize].ready.pop();
            let unit_state = &self.steps.get(step).units[unit as usize];
            let seconds = unit_state.seconds * unit_state.forward;
            self.start(rank, Job::Encode { step, unit }, seconds);
            return true;
        }
        if let Some(Reverse(unit)) = self.encoders[encoder as usize].returned.pop() {
            let unit_state = &self.steps.get(version).units[unit as usize];
            let seconds = unit_state.seconds * (1.0 - unit_state.forward);
            self.start(rank, Job::EncoderBackward { step: version, unit }, seconds);
            return true;
        }
        false
    }

    /// Ends the forward of a unit, whose features are on their way from now on.
    pub(super) fn has_encoded(&mut self, rank: u32, step: u64, unit: u32) {
        let is_trained = self.encoders[self.steps.get(step).units[unit as usize].encoder as usize].is_trained;
        let planned = self.steps.get_mut(step);
        let UnitState { feature_bytes: bytes, encoder, replica, order_next: next, .. } = planned.units[unit as usize];
        planned.units_to_encode[encoder as usize] -= 1;
        if !is_trained {
            planned.units_open[encoder as usize] -= 1;
        }
        if next != NONE {
            let after = &mut planned.units[next as usize];
            after.order_turn = true;
            if after.pixels_missing == 0 {
                self.encoders[encoder as usize].ready.push(Reverse((step, next)));
            }
        }
        let to = self.stage_rank(replica, 0);
        if to == rank {
            self.features_arrive(step, unit);
        } else {
            let time = self.clock.now();
            self.send(Parcel { kind: CargoKind::Features, step, index: unit, from: rank, to, bytes, time });
        }
    }

    /// A unit's gradients have come.
    pub(super) fn unit_returns(&mut self, step: u64, unit: u32) {
        let planned = self.steps.get_mut(step);
        let state = &mut planned.units[unit as usize];
        let encoder = state.encoder as usize;
        state.returned = true;
        if state.lane_turn {
            self.encoders[encoder].returned.push(Reverse(unit));
        }
    }

    /// Ends the backward of a unit.
    pub(super) fn has_gone_back(&mut self, step: u64, unit: u32) {
        let planned = self.steps.get_mut(step);
        let UnitState { encoder, lane_next: next, .. } = planned.units[unit as usize];
        let encoder = encoder as usize;
        planned.units_open[encoder] -= 1;
        if next != NONE {
            let after = &mut planned.units[next as usize];
            after.lane_turn = true;
            if after.returned {
                self.encoders[encoder].returned.push(Reverse(next));
            }
        }
    }

    /// `None`: not for anything of its own.
    pub(super) fn encoder_waits_for(&self, rank: u32, encoder: u32) -> Option<Activity> {
        let planned = self.steps.find(self.ranks[rank as usize].version)?;
        if planned.units_to_encode[encoder as usize] > 0 {
            Some(Activity::WaitSamples)
        } else {
            (planned.units_open[encoder as usize] > 0).then_some(Activity::WaitGradients)
        }
    }
}
