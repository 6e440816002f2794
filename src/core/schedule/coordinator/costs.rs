//! Cost models fitted to the times that engines report, and the balance of each step.

use super::{CoordinatorSpec, FittedCosts};
use crate::message::Replica;
use crate::message::{ActorId, PoolName, Role, StepPlan, Timings};
use crate::schedule::{EncoderPlanSpec, Fit, FoundationPlanSpec, PlanSpec, Work};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Number of steps after which the weight of a measurement is halved.
const HALF_LIFE_STEPS: f64 = 100.0;

/// Fitted costs of a run; empty if costs are static.
#[derive(Serialize, Deserialize)]
pub(super) struct Costs(Option<FittedCosts>);

impl Costs {
    /// Starts with the costs in the state, for pools that still exist; fits nothing unless `scheduler.balance` is fitted.
    pub fn new(spec: &CoordinatorSpec) -> Self {
        let fresh = || {
            // Each replica of a pool gives one measurement a step.
            let fit = |prior, replicas: u32| Fit::new(prior, HALF_LIFE_STEPS * f64::from(replicas.max(1)));
            let encoders = spec.plan.encoders.iter().map(|pool| (pool.pool, fit(pool.cost, pool.replicas)));
            let foundations = spec.plan.foundations.iter().map(|pool| (pool.pool, fit(pool.cost, pool.replicas)));
            encoders.chain(foundations).collect::<BTreeMap<_, _>>()
        };
        // A resumed run may have other pools: of those nothing is known.
        let known = spec.state.costs.clone().unwrap_or_default().0;
        let fits = || fresh().into_iter().map(|(pool, fit)| (pool, known.get(&pool).cloned().unwrap_or(fit)));
        Self(spec.fitted.then(|| FittedCosts(fits().collect())))
    }

    /// Adds what the engines of one step computed, and how long it took.
    pub fn observe(&mut self, spec: &PlanSpec, plan: &StepPlan, timings: &[(ActorId, Timings)]) {
        let Some(FittedCosts(fits)) = &mut self.0 else { return };
        let (of_encoders, of_foundations) = (encoder_work(spec, plan), foundation_work(spec, plan));
        for &(actor, Timings { units, packs, .. }) in timings {
            // Ranks of one replica take as long as its leader.
            let led = spec.led_by(actor);
            if let Some((fit, replica)) = fits.get_mut(&actor.pool).zip(led).filter(|_| actor.role == Role::Foundation)
            {
                fit.observe(of_foundations.get(&replica).copied().unwrap_or_default(), packs);
            }
            let led = if spec.colocated { Some(Replica::encoder(actor.index)) } else { led };
            let Some(replica) = led.filter(|_| actor.role == Role::Encoder || spec.colocated) else { continue };
            if let Some(fit) = fits.get_mut(&replica.pool) {
                fit.observe(of_encoders.get(&replica).copied().unwrap_or_default(), units);
            }
        }
    }

    /// Uses the fitted costs in plans from now on.
    pub fn apply(&self, spec: &mut PlanSpec) {
        let Some(FittedCosts(fits)) = &self.0 else { return };
        for (&name, fit) in fits {
            if let Some(cost) = spec.cost_mut(name) {
                *cost = fit.model();
            }
        }
    }

    /// Returns the fitted costs for a checkpoint; `None` if nothing is fitted.
    pub fn fitted(&self) -> Option<FittedCosts> {
        self.0.clone()
    }
}

impl FittedCosts {
    /// Returns the seconds per attending pair of tokens, per token, and per document or media item, of each pool; `None` before
    /// enough was measured.
    pub fn seconds(&self) -> impl Iterator<Item = (PoolName, Option<[f64; 3]>)> {
        let ones = [
            Work { pairs: 1, ..Work::default() },
            Work { tokens: 1, ..Work::default() },
            Work { count: 1, ..Work::default() },
        ];
        self.0.iter().map(move |(&pool, fit)| {
            let [pair, token, one] = ones.map(|work| fit.seconds(work));
            (pool, pair.zip(token).zip(one).map(|((pair, token), one)| [pair, token, one]))
        })
    }
}

/// Returns the work of each foundation replica.
fn foundation_work(spec: &PlanSpec, plan: &StepPlan) -> BTreeMap<Replica, Work> {
    let mut work: BTreeMap<Replica, Work> = BTreeMap::new();
    for pack in &plan.packs {
        let Some(pool) = spec.foundation_pool(pack.replica.pool) else { continue };
        *work.entry(pack.replica).or_default() += pack.samples.iter().map(|sample| pool.cost.sample_work(sample)).sum();
    }
    work
}

/// Returns the work of each encoder.
fn encoder_work(spec: &PlanSpec, plan: &StepPlan) -> BTreeMap<Replica, Work> {
    let mut work: BTreeMap<Replica, Work> = BTreeMap::new();
    for unit in &plan.units {
        let cost = spec.pool_of(unit.tower()).cost;
        *work.entry(unit.encoder).or_default() += unit.items.iter().map(|item| cost.item_work(&item.meta)).sum();
    }
    work
}

/// The balance of a step's work over the replicas of the pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepBalance {
    /// Tokens of the packs divided by their capacity.
    pub fill: f64,
    /// The encoder pool with the largest imbalance.
    pub encoder: Imbalance,
    /// The foundation pool with the largest imbalance.
    pub foundation: Imbalance,
}

/// Largest load of a replica divided by the mean: 1 if all are equal; 0 if there is no load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Imbalance {
    /// Imbalance of the cost that the plan uses.
    pub predicted: f64,
    /// Imbalance of the engines' measured seconds; 0 before they report.
    pub measured: f64,
}

impl StepBalance {
    /// Returns the planned balance.
    pub fn of(spec: &PlanSpec, plan: &StepPlan) -> Self {
        let room = plan.packs.len() * spec.pack.max_tokens;
        let mut encoders: BTreeMap<Replica, u128> = BTreeMap::new();
        for unit in plan.units.iter().filter(|unit| !unit.is_skipped()) {
            *encoders.entry(unit.encoder).or_default() += u128::from(spec.unit_cost(unit));
        }
        let of_pool = |pool: &EncoderPlanSpec| {
            let costs = encoders.iter().filter(|(replica, _)| replica.pool == pool.pool).map(|(_, &cost)| cost);
            let mut costs: Vec<u128> = costs.collect();
            // Numbers without units are of encoders that have left, or have nothing to do: those count in the mean.
            costs.resize(costs.len().max(pool.replicas as usize), 0);
            costs
        };
        let mut foundations: BTreeMap<Replica, u128> = BTreeMap::new();
        for pack in &plan.packs {
            let cost = pack.samples.iter().map(|sample| u128::from(spec.sample_cost(sample)));
            *foundations.entry(pack.replica).or_default() += cost.sum::<u128>();
        }
        let of_foundation = |pool: &FoundationPlanSpec| {
            let costs = (0..pool.replicas).map(|index| foundations.get(&Replica::new(pool.pool, index)));
            costs.map(|cost| cost.copied().unwrap_or(0)).collect()
        };
        let planned = |costs: Vec<u128>| Imbalance {
            predicted: imbalance(costs.into_iter().map(|cost| cost as f64).collect()),
            measured: 0.0,
        };
        Self {
            fill: if room == 0 { 0.0 } else { plan.num_tokens() as f64 / room as f64 },
            encoder: worst(spec.encoders.iter().map(|pool| planned(of_pool(pool)))),
            foundation: worst(spec.foundations.iter().map(|pool| planned(of_foundation(pool)))),
        }
    }

    /// Adds measurements of the engines; `timings` are in the order of their actors.
    pub fn measure(&mut self, timings: &[(ActorId, Timings)]) {
        let of = |pool: &[(ActorId, Timings)], seconds: fn(&Timings) -> f64| {
            imbalance(pool.iter().map(|(_, timings)| seconds(timings)).collect())
        };
        let is_separate = timings.iter().any(|(actor, _)| actor.role == Role::Encoder);
        for pool in timings.chunk_by(|(one, _), (next, _)| one.pool == next.pool) {
            let role = pool[0].0.role;
            if role == Role::Foundation {
                self.foundation.measured = self.foundation.measured.max(of(pool, |timings| timings.packs));
            }
            if role == Role::Encoder || !is_separate {
                self.encoder.measured = self.encoder.measured.max(of(pool, |timings| timings.units));
            }
        }
    }
}

fn worst(pools: impl Iterator<Item = Imbalance>) -> Imbalance {
    pools.max_by(|one, other| one.predicted.total_cmp(&other.predicted)).unwrap_or_default()
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
