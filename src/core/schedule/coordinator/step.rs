//! One step in flight: who has reduced it, what was decided, who has applied that.

use super::{FittedCosts, PoolSizes, SchedulerState, StepBalance, StepSummary};
use crate::message::{ActorId, Commit, ExpertLoads, Role, RoutingReport, SampleId, StepPlan, StepReport, Timings};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(super) struct InFlight {
    pub plan: Arc<StepPlan>,
    /// Positions before the plan's cursor that are in no plan yet.
    held: Vec<SampleId>,
    /// As planned.
    balance: StepBalance,
    reports: BTreeMap<ActorId, StepReport>,
    decision: Option<Decision>,
    applied_by: BTreeSet<ActorId>,
}

/// Both pools together.
#[derive(Clone, Copy)]
pub(super) struct Decision {
    pub loss: f64,
    pub grad_norm: f64,
    /// `None`: something is not finite, the step is skipped.
    pub commit: Option<Commit>,
}

impl InFlight {
    pub fn new(plan: Arc<StepPlan>, held: Vec<SampleId>, balance: StepBalance) -> Self {
        Self { plan, held, balance, reports: BTreeMap::new(), decision: None, applied_by: BTreeSet::new() }
    }

    /// Where the stream stands after it, and what is fitted.
    pub fn state(&self, costs: Option<FittedCosts>) -> SchedulerState {
        SchedulerState { cursor: self.plan.cursor, held: self.held.clone(), costs }
    }

    pub fn timings(&self) -> Vec<(ActorId, Timings)> {
        self.reports.iter().map(|(&actor, report)| (actor, report.timings)).collect()
    }

    pub fn is_decided(&self) -> bool {
        self.decision.is_some()
    }

    /// # Errors
    /// The engine reports for the second time.
    pub fn reduced(&mut self, actor: ActorId, report: StepReport) -> Result<(), String> {
        let step = report.step;
        match self.reports.insert(actor, report) {
            None => Ok(()),
            Some(_) => Err(format!("reduced step {step} twice")),
        }
    }

    /// Decides once all engines have reported; `None` before, and afterwards.
    ///
    /// The loss is the sum over foundation replicas in their order. Replicas of a pool report the same norm; the
    /// pool's first one counts.
    pub fn decide(&mut self, pools: PoolSizes, clip_grad: f64) -> Option<Decision> {
        if self.decision.is_some() || self.reports.len() < pools.num_compute() {
            return None;
        }
        let loss = (0..pools.foundation).map(|index| self.reports[&ActorId::foundation(index)].loss).sum::<f64>();
        let first = [ActorId::encoder(0), ActorId::foundation(0)];
        let squares = first.iter().filter_map(|actor| Some(self.reports.get(actor)?.grad_square_sum)).sum::<f64>();
        let grad_norm = squares.sqrt();
        let commit = (loss.is_finite() && grad_norm.is_finite()).then(|| Commit {
            step: self.plan.step,
            clip_scale: if clip_grad > 0.0 { (clip_grad / (grad_norm + 1e-6)).min(1.0) } else { 1.0 },
            learning_rate: self.plan.learning_rate,
        });
        self.decision = Some(Decision { loss, grad_norm, commit });
        self.decision
    }

    /// True once all engines have.
    ///
    /// # Errors
    /// Nothing was decided yet, or the engine says so for the second time.
    pub fn applied(&mut self, actor: ActorId, pools: PoolSizes) -> Result<bool, String> {
        if self.decision.is_none() || !self.applied_by.insert(actor) {
            return Err(format!("applied step {} twice or before it was decided", self.plan.step));
        }
        Ok(self.applied_by.len() == pools.num_compute())
    }

    pub fn samples(&self) -> Vec<SampleId> {
        let mut ids: Vec<_> =
            self.plan.packs.iter().flat_map(|pack| pack.samples.iter().map(|sample| sample.id)).collect();
        ids.sort_unstable();
        ids
    }

    /// The losses are sums over the foundation's ranks in their order; the loads are the pool's, those of each layer from the
    /// first rank that has it.
    fn routing(&self) -> Option<RoutingReport> {
        let of_pool = self.reports.iter().filter(|(actor, _)| actor.role == Role::Foundation);
        let mut reports = of_pool.filter_map(|(_, report)| report.routing.clone());
        let mut whole = reports.next()?;
        for other in reports {
            for (sum, part) in [(&mut whole.aux_loss, other.aux_loss), (&mut whole.z_loss, other.z_loss)] {
                *sum = sum.zip(part).map(|(sum, part)| sum + part).or(*sum).or(part);
            }
            for loads in other.loads {
                if whole.loads.iter().all(|known| known.layer != loads.layer) {
                    whole.loads.push(loads);
                }
            }
        }
        // As layers are numbered; prediction heads come last.
        let place = |loads: &ExpertLoads| {
            let mut words = loads.layer.split(' ');
            let kind = words.next().map(str::to_owned);
            (kind, words.next().and_then(|number| number.parse::<usize>().ok()))
        };
        whole.loads.sort_by_key(place);
        Some(whole)
    }

    /// # Panics
    /// It was not decided.
    pub fn summary(&self, pools: PoolSizes, costs: Option<FittedCosts>) -> StepSummary {
        let Decision { loss, grad_norm, commit } = self.decision.expect("a step is decided before it is applied");
        let timings = self.timings();
        let mut balance = self.balance;
        balance.measure(pools, &timings);
        StepSummary {
            step: self.plan.step,
            loss,
            grad_norm,
            routing: self.routing(),
            learning_rate: self.plan.learning_rate,
            num_samples: self.plan.packs.iter().map(|pack| pack.samples.len()).sum(),
            num_tokens: self.plan.num_tokens(),
            num_targets: self.plan.num_targets,
            num_items: self.plan.num_items(),
            num_packs: self.plan.packs.len(),
            applied: commit.is_some(),
            timings,
            balance,
            costs,
        }
    }
}
