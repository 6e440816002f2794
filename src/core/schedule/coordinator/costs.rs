//! Cost models fitted to the seconds that engines report, and how evenly a step's work lay.

use super::{CoordinatorSpec, FittedCosts};
use crate::message::Replica;
use crate::message::{ActorId, PoolName, Role, StepPlan, Timings};
use crate::schedule::{EncoderPlanSpec, Fit, PlanSpec, Work};
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
            let encoders = spec.plan.encoders.iter().map(|pool| (pool.pool, fit(pool.cost, pool.replicas)));
            let foundation = (PoolName::FOUNDATION, fit(spec.plan.cost, spec.plan.foundation_replicas));
            encoders.chain([foundation]).collect::<BTreeMap<_, _>>()
        };
        // A resumed run may have other pools: of those nothing is known.
        let known = spec.state.costs.clone().unwrap_or_default().0;
        let fits = || fresh().into_iter().map(|(pool, fit)| (pool, known.get(&pool).cloned().unwrap_or(fit)));
        Self(spec.fitted.then(|| FittedCosts(fits().collect())))
    }

    /// Takes what the engines of one step computed, and how long.
    pub fn observe(&mut self, spec: &PlanSpec, plan: &StepPlan, timings: &[(ActorId, Timings)]) {
        let Some(FittedCosts(fits)) = &mut self.0 else { return };
        let (of_encoders, of_foundations) = (encoder_work(spec, plan), foundation_work(spec, plan));
        for &(actor, Timings { units, packs, .. }) in timings {
            if let Some(fit) = fits.get_mut(&actor.pool).filter(|_| actor.role == Role::Foundation) {
                fit.observe(of_foundations[actor.index as usize], packs);
            }
            let pool = if spec.colocated { PoolName::ENCODER } else { actor.pool };
            if let Some(fit) = fits.get_mut(&pool).filter(|_| actor.role == Role::Encoder || spec.colocated) {
                let work = of_encoders.get(&Replica::new(pool, actor.index)).copied().unwrap_or_default();
                fit.observe(work, units);
            }
        }
    }

    /// Plans go by it from now on.
    pub fn apply(&self, spec: &mut PlanSpec) {
        let Some(FittedCosts(fits)) = &self.0 else { return };
        for (&name, fit) in fits {
            match spec.encoder_pool(name) {
                Some(pool) => pool.cost = fit.model(),
                None => spec.cost = fit.model(),
            }
        }
    }

    pub fn fitted(&self) -> Option<FittedCosts> {
        self.0.clone()
    }
}

impl FittedCosts {
    /// Seconds of a pair of tokens that attend to each other, of a token, and of a document or media item, of each pool.
    /// `None` before enough was measured.
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
fn foundation_work(spec: &PlanSpec, plan: &StepPlan) -> Vec<Work> {
    let mut work = vec![Work::default(); spec.foundation_replicas as usize];
    for pack in &plan.packs {
        work[pack.replica.index as usize] += pack.samples.iter().map(|sample| spec.cost.sample_work(sample)).sum();
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

/// Describes how evenly a step's work lies on the replicas of the pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepBalance {
    /// Tokens of the packs over what they could hold.
    pub fill: f64,
    /// Of the encoder pool whose work lies least evenly.
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
        let mut foundations = vec![0; spec.foundation_replicas as usize];
        for pack in &plan.packs {
            let cost = pack.samples.iter().map(|sample| u128::from(spec.cost.sample(sample)));
            foundations[pack.replica.index as usize] += cost.sum::<u128>();
        }
        let planned = |costs: Vec<u128>| Imbalance {
            predicted: imbalance(costs.into_iter().map(|cost| cost as f64).collect()),
            measured: 0.0,
        };
        Self {
            fill: if room == 0 { 0.0 } else { plan.num_tokens() as f64 / room as f64 },
            encoder: spec
                .encoders
                .iter()
                .map(|pool| planned(of_pool(pool)))
                .fold(Imbalance::default(), Imbalance::worse),
            foundation: planned(foundations),
        }
    }

    /// Adds what engines have measured; `timings` are in the order of their actors.
    pub fn measure(&mut self, timings: &[(ActorId, Timings)]) {
        let of = |pool: &[(ActorId, Timings)], seconds: fn(&Timings) -> f64| {
            imbalance(pool.iter().map(|(_, timings)| seconds(timings)).collect())
        };
        let is_separate = timings.iter().any(|(actor, _)| actor.role == Role::Encoder);
        for pool in timings.chunk_by(|(one, _), (next, _)| one.pool == next.pool) {
            let role = pool[0].0.role;
            if role == Role::Foundation {
                self.foundation.measured = of(pool, |timings| timings.packs);
            }
            if role == Role::Encoder || !is_separate {
                self.encoder.measured = self.encoder.measured.max(of(pool, |timings| timings.units));
            }
        }
    }
}

impl Imbalance {
    fn worse(self, other: Self) -> Self {
        if other.predicted > self.predicted { other } else { self }
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
