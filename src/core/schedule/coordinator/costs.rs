//! Cost models fitted to the seconds that engines report, and how evenly a step's work lay.

use super::{CoordinatorSpec, FittedCosts, PoolSizes};
use crate::message::{ActorId, Role, StepPlan, Timings};
use crate::schedule::{Fit, PlanSpec, Work};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Steps after which a measurement counts half.
const HALF_LIFE_STEPS: f64 = 100.0;

/// The fits of a run; nothing where costs are static.
#[derive(Serialize, Deserialize)]
pub(super) struct Costs(Option<FittedCosts>);

impl Costs {
    pub fn new(spec: &CoordinatorSpec) -> Self {
        let fresh = || {
            // Each replica of a pool gives one measurement a step.
            let fit = |prior, replicas: u32| Fit::new(prior, HALF_LIFE_STEPS * f64::from(replicas.max(1)));
            FittedCosts {
                encoder: fit(spec.plan.encoder_cost, spec.plan.encoder_replicas),
                foundation: fit(spec.plan.cost, spec.plan.foundation_replicas),
            }
        };
        Self(spec.fitted.then(|| spec.state.costs.clone().unwrap_or_else(fresh)))
    }

    /// Takes what the engines of one step computed, and how long.
    pub fn observe(&mut self, spec: &PlanSpec, plan: &StepPlan, timings: &[(ActorId, Timings)]) {
        let Some(FittedCosts { encoder, foundation }) = &mut self.0 else { return };
        let (of_encoders, of_foundations) = (encoder_work(spec, plan), foundation_work(spec, plan));
        for &(actor, Timings { units, packs, .. }) in timings {
            let index = actor.index as usize;
            if actor.role == Role::Foundation {
                foundation.observe(of_foundations[index], packs);
            }
            if actor.role == Role::Encoder || spec.colocated {
                encoder.observe(of_encoders.get(&actor.index).copied().unwrap_or_default(), units);
            }
        }
    }

    /// Plans go by it from now on.
    pub fn apply(&self, spec: &mut PlanSpec) {
        if let Some(FittedCosts { encoder, foundation }) = &self.0 {
            (spec.encoder_cost, spec.cost) = (encoder.model(), foundation.model());
        }
    }

    pub fn fitted(&self) -> Option<FittedCosts> {
        self.0.clone()
    }
}

impl FittedCosts {
    /// Seconds of a pair of tokens that attend to each other, of a token, and of a document or media item; encoder,
    /// then foundation. `None` before enough was measured.
    pub fn seconds(&self) -> [Option<[f64; 3]>; 2] {
        let ones = [
            Work { pairs: 1, ..Work::default() },
            Work { tokens: 1, ..Work::default() },
            Work { count: 1, ..Work::default() },
        ];
        [&self.encoder, &self.foundation].map(|fit| {
            let [pair, token, one] = ones.map(|work| fit.seconds(work));
            Some([pair?, token?, one?])
        })
    }
}

/// Returns the work of each foundation replica.
fn foundation_work(spec: &PlanSpec, plan: &StepPlan) -> Vec<Work> {
    let mut work = vec![Work::default(); spec.foundation_replicas as usize];
    for pack in &plan.packs {
        work[pack.replica as usize] += pack.samples.iter().map(|sample| spec.cost.sample_work(sample)).sum();
    }
    work
}

/// Returns the work of each encoder.
fn encoder_work(spec: &PlanSpec, plan: &StepPlan) -> BTreeMap<u32, Work> {
    let mut work: BTreeMap<u32, Work> = BTreeMap::new();
    for unit in &plan.units {
        *work.entry(unit.encoder).or_default() +=
            unit.items.iter().map(|item| spec.encoder_cost.item_work(&item.meta)).sum();
    }
    work
}

/// Describes how evenly a step's work lies on the replicas of the two pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepBalance {
    /// Tokens of the packs over what they could hold.
    pub fill: f64,
    pub encoder: Imbalance,
    pub foundation: Imbalance,
}

/// The most that a replica has over the mean: 1 where all have alike; 0 where there is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Imbalance {
    /// The balance of the cost that the plan goes by.
    pub predicted: f64,
    /// The balance of the seconds that engines computed; 0 before they have.
    pub measured: f64,
}

impl StepBalance {
    /// Returns the balance as planned.
    pub fn of(spec: &PlanSpec, plan: &StepPlan) -> Self {
        let room = plan.packs.len() * spec.pack.max_tokens;
        let num_encoders = plan.units.iter().map(|unit| unit.encoder as usize + 1).max().unwrap_or(0);
        let mut encoders: Vec<Option<u128>> = vec![None; num_encoders];
        for unit in &plan.units {
            let cost = unit.items.iter().map(|item| u128::from(spec.encoder_cost.item(&item.meta)));
            *encoders[unit.encoder as usize].get_or_insert(0) += cost.sum::<u128>();
        }
        // Numbers without units are of encoders that have left, or have nothing to do: those count in the mean.
        let mut encoders: Vec<u128> = encoders.into_iter().flatten().collect();
        encoders.resize(encoders.len().max(spec.encoder_replicas as usize), 0);
        let mut foundations = vec![0; spec.foundation_replicas as usize];
        for pack in &plan.packs {
            let cost = pack.samples.iter().map(|sample| u128::from(spec.cost.sample(sample)));
            foundations[pack.replica as usize] += cost.sum::<u128>();
        }
        let planned = |costs: Vec<u128>| Imbalance {
            predicted: imbalance(costs.into_iter().map(|cost| cost as f64).collect()),
            measured: 0.0,
        };
        Self {
            fill: if room == 0 { 0.0 } else { plan.num_tokens() as f64 / room as f64 },
            encoder: planned(encoders),
            foundation: planned(foundations),
        }
    }

    pub fn measure(&mut self, pools: PoolSizes, timings: &[(ActorId, Timings)]) {
        let encoding = if pools.encoder == 0 { Role::Foundation } else { Role::Encoder };
        let of = |role: Role| timings.iter().filter(move |(actor, _)| actor.role == role);
        self.encoder.measured = imbalance(of(encoding).map(|(_, timings)| timings.units).collect());
        self.foundation.measured = imbalance(of(Role::Foundation).map(|(_, timings)| timings.packs).collect());
    }
}

fn imbalance(shares: Vec<f64>) -> f64 {
    let sum: f64 = shares.iter().sum();
    let most = shares.iter().copied().fold(0.0, f64::max);
    if sum > 0.0 { most * shares.len() as f64 / sum } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_over_the_mean() {
        assert_eq!(imbalance(vec![2.0, 2.0]), 1.0);
        assert_eq!(imbalance(vec![3.0, 1.0, 2.0]), 1.5);
        assert_eq!(imbalance(vec![0.0, 0.0]), 0.0);
        assert_eq!(imbalance(Vec::new()), 0.0);
    }
}
