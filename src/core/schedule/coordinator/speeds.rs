//! Describes how fast each encoder of a pool is, and work shared out by that: a slow encoder costs its share, not the run.
//!
//! Encoders that are about equal are taken for equal, so that plans of a healthy run do not depend on times. One that
//! takes more than twice as long as the middle one for the same work, several steps in a row, is a straggler: from then on
//! units go to whom they are done by first.

use crate::message::{ActorId, PoolName, StepPlan, Timings, Unit};
use crate::schedule::PlanSpec;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Sets how many times slower than the middle encoder a straggler is, and down to what it stays one.
const SLOW: f64 = 2.0;
const SLOW_STILL: f64 = 1.5;
/// Seconds in a step below which nobody is slow: they are noise.
const NOTICEABLE: f64 = 2e-3;
/// Steps in a row before it is called so.
const STEPS: u32 = 3;
/// The weight of the last step in an encoder's mean.
const LAST: f64 = 0.3;
/// Units of a pack and encoder where stragglers are given fractions of what others get.
const FINER: u32 = 4;

/// An encoder that is much slower than the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Straggler {
    pub actor: ActorId,
    /// Tells how many times longer it takes for the same work than the middle encoder.
    pub times_slower: f64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Speeds {
    pool: PoolName,
    known: BTreeMap<u32, Speed>,
}

#[derive(Serialize, Deserialize)]
struct Speed {
    /// Seconds for a unit of cost, the last steps counting most.
    pace: f64,
    /// Steps in a row in which it was slow.
    slow_steps: u32,
    is_straggler: bool,
    /// Holds what it was given so far, in its own seconds, beyond what the first to be free was.
    ahead: f64,
}

impl Speeds {
    /// Takes all encoders of a pool for equal, until times say otherwise.
    pub fn new(pool: PoolName) -> Self {
        Self { pool, known: BTreeMap::new() }
    }

    /// Takes note of how long the encoders of a step took for their units.
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

    /// The lower median, so that of two encoders the faster one is the measure.
    fn middle(&self) -> f64 {
        let mut paces: Vec<f64> = self.known.values().map(|speed| speed.pace).collect();
        paces.sort_by(f64::total_cmp);
        paces.get(paces.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
    }

    /// Returns the encoders that are known to be slow, with their times in those of the middle one.
    pub fn stragglers(&self) -> Vec<Straggler> {
        let middle = self.middle();
        let slow = self.known.iter().filter(|(_, speed)| speed.is_straggler);
        let straggler = |(&index, speed): (&u32, &Speed)| Straggler {
            actor: ActorId::encoder_of(self.pool, index),
            times_slower: speed.pace / middle,
        };
        slow.map(straggler).collect()
    }

    /// So many times as many lanes serve a pool in which lanes need not be the same for every number of encoders.
    pub fn lanes_per_encoder(&self) -> u32 {
        if self.known.values().any(|speed| speed.is_straggler) { FINER } else { 1 }
    }

    /// For each unit of the pool, in the order of their deadlines, the one of `workers` that ends it first. All units of a lane stay
    /// together where `fixed_lanes`: their gradients are summed by one encoder. `None` without stragglers.
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
