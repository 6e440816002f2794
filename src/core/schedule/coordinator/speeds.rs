//! Measures the speed of each encoder of a pool and assigns work accordingly: a slow encoder costs its share, not the run.
//!
//! Encoders of about equal speed count as equal, so that plans of a healthy run do not depend on times. An encoder that takes more
//! than twice as long as the median for the same work, in several consecutive steps, is a straggler: from then on, each unit goes
//! to the encoder that finishes it first.

use crate::message::{ActorId, PoolName, StepPlan, Timings, Unit};
use crate::schedule::PlanSpec;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Factors over the median encoder's time above which an encoder becomes a straggler, and above which it stays one.
const SLOW: f64 = 2.0;
const SLOW_STILL: f64 = 1.5;
/// Seconds per step below which no encoder counts as slow: they are noise.
const NOTICEABLE: f64 = 2e-3;
/// Number of consecutive slow steps before an encoder counts as a straggler.
const STEPS: u32 = 3;
/// Weight of the last step in an encoder's running mean.
const LAST: f64 = 0.3;
/// Units per pack and encoder if stragglers get fractions of what others get.
const FINER: u32 = 4;

/// An encoder that is much slower than the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Straggler {
    pub actor: ActorId,
    /// The time that it takes for the same work, as a multiple of that of the median encoder.
    pub times_slower: f64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Speeds {
    pool: PoolName,
    known: BTreeMap<u32, Speed>,
}

#[derive(Serialize, Deserialize)]
struct Speed {
    /// Seconds per unit of cost, as a running mean.
    pace: f64,
    /// Number of consecutive slow steps.
    slow_steps: u32,
    is_straggler: bool,
    /// The work that it was given so far, in its own seconds, beyond that of the encoder that is free first.
    ahead: f64,
}

impl Speeds {
    /// Treats all encoders of a pool as equal until they are measured.
    pub fn new(pool: PoolName) -> Self {
        Self { pool, known: BTreeMap::new() }
    }

    /// Records how long the encoders of a step took for their units.
    pub fn observe(&mut self, spec: &PlanSpec, plan: &StepPlan, timings: &[(ActorId, Timings)]) {
        let pool = self.pool;
        let of_encoders = || timings.iter().filter(|(actor, _)| actor.pool == pool);
        self.known.retain(|&index, _| of_encoders().any(|(actor, _)| actor.index == index));
        // What came from a cache says nothing of the encoder.
        if of_encoders().any(|(_, timings)| timings.cached_items > 0) {
            return;
        }
        let mut costs = BTreeMap::<u32, u64>::new();
        for unit in plan.units.iter().filter(|unit| unit.encoder.pool == pool) {
            *costs.entry(unit.encoder.index).or_default() += spec.unit_cost(unit);
        }
        for (actor, timings) in of_encoders() {
            let Some(&cost) = costs.get(&actor.index).filter(|&&cost| cost > 0) else { continue };
            let pace = timings.units / cost as f64;
            let fresh = Speed { pace, slow_steps: 0, is_straggler: false, ahead: 0.0 };
            let speed = self.known.entry(actor.index).or_insert(fresh);
            speed.pace += LAST * (pace - speed.pace);
        }
        let middle = self.middle();
        for (actor, timings) in of_encoders() {
            let Some(speed) = self.known.get_mut(&actor.index) else { continue };
            let bound = if speed.is_straggler { SLOW_STILL } else { SLOW };
            let counts = speed.is_straggler || timings.units > NOTICEABLE;
            let is_slow = counts && speed.pace > bound * middle;
            speed.slow_steps = if is_slow { speed.slow_steps + 1 } else { 0 };
            speed.is_straggler = is_slow && (speed.is_straggler || speed.slow_steps >= STEPS);
        }
    }

    /// Returns the lower median, so that of two encoders the faster one is the reference.
    fn middle(&self) -> f64 {
        let mut paces: Vec<f64> = self.known.values().map(|speed| speed.pace).collect();
        paces.sort_by(f64::total_cmp);
        paces.get(paces.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
    }

    /// Returns the stragglers, with their times relative to the median encoder.
    pub fn stragglers(&self) -> Vec<Straggler> {
        let middle = self.middle();
        let slow = self.known.iter().filter(|(_, speed)| speed.is_straggler);
        let straggler = |(&index, speed): (&u32, &Speed)| Straggler {
            actor: ActorId::encoder_of(self.pool, index),
            times_slower: speed.pace / middle,
        };
        slow.map(straggler).collect()
    }

    /// Returns the factor on the number of lanes of a pool whose lanes may depend on the number of encoders.
    pub fn lanes_per_encoder(&self) -> u32 {
        if self.known.values().any(|speed| speed.is_straggler) { FINER } else { 1 }
    }

    /// Returns, for each unit of the pool in order of deadline, the one of `workers` that finishes it first. With `fixed_lanes`,
    /// all units of a lane stay together: their gradients are summed by one encoder. `None` without stragglers.
    pub fn share_out(
        &mut self,
        spec: &PlanSpec,
        units: &[&Unit],
        workers: &[u32],
        fixed_lanes: bool,
    ) -> Option<Vec<u32>> {
        if self.lanes_per_encoder() == 1 {
            self.known.values_mut().for_each(|speed| speed.ahead = 0.0);
            return None;
        }
        let middle = self.middle();
        let pace = |known: &BTreeMap<u32, Speed>, worker| known.get(&worker).map_or(middle, |speed| speed.pace);
        let mut ahead: Vec<f64> =
            workers.iter().map(|worker| self.known.get(worker).map_or(0.0, |speed| speed.ahead)).collect();
        let mut give = |cost: u64| {
            let end = |place: usize| ahead[place] + cost as f64 * pace(&self.known, workers[place]);
            let first = (0..workers.len()).min_by(|&a, &b| end(a).total_cmp(&end(b))).expect("somebody works");
            ahead[first] = end(first);
            workers[first]
        };
        let encoders = if fixed_lanes {
            let mut lanes = BTreeMap::<u32, u64>::new();
            units.iter().for_each(|unit| *lanes.entry(unit.lane.0).or_default() += spec.unit_cost(unit));
            let mut costliest: Vec<(u32, u64)> = lanes.into_iter().collect();
            costliest.sort_by_key(|&(lane, cost)| (std::cmp::Reverse(cost), lane));
            let owner: BTreeMap<u32, u32> = costliest.into_iter().map(|(lane, cost)| (lane, give(cost))).collect();
            units.iter().map(|unit| owner[&unit.lane.0]).collect()
        } else {
            units.iter().map(|unit| give(spec.unit_cost(unit))).collect()
        };
        let first = ahead.iter().copied().fold(f64::INFINITY, f64::min);
        for (worker, ahead) in workers.iter().zip(ahead) {
            if let Some(speed) = self.known.get_mut(worker) {
                speed.ahead = ahead - first;
            }
        }
        Some(encoders)
    }
}

#[cfg(test)]
#[path = "speeds_tests.rs"]
mod tests;
