//! One step in flight: which actors have reduced it, what was decided, and which actors have applied that.

use super::by_actor::ByActor;
use super::encoder_pool::EncoderPool;
use super::io::ExpertStep;
use super::{FittedCosts, Ledger, PoolSize, PoolSizes, SchedulerState, StepBalance, StepSummary};
use crate::message::{
    ActorId, Command, Commit, EvaluationReport, ExpertLoads, PairReport, Role, RoutingReport, SampleId, StepPlan,
    StepReport, Timings,
};
use crate::message::{Replica, SKIPPED, SampleMeta, Unit, UnitId};
use crate::schedule::Batch;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

#[derive(Serialize, Deserialize)]
pub(super) struct InFlight {
    pub plan: Arc<StepPlan>,
    /// Positions before the plan's cursor that are in no plan yet.
    held: Vec<SampleId>,
    /// The planned balance.
    balance: StepBalance,
    reports: ByActor<StepReport>,
    /// Encoders that have finished their units of this epoch.
    finished_by: BTreeSet<ActorId>,
    decision: Option<Decision>,
    /// Set once decided: the foundation pools, if there are several.
    experts: Vec<ExpertStep>,
    /// Set once decided: actors that have not applied it yet.
    awaited: ByActor<()>,
}

/// The decision over all pools.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Decision {
    pub loss: f64,
    pub grad_norm: f64,
    /// `None`: something is not finite, and the step is skipped.
    pub commit: Option<Commit>,
}

impl InFlight {
    /// Begins a planned step; `held` are samples that were read and are in no plan yet.
    pub fn new(plan: Arc<StepPlan>, held: Vec<SampleId>, balance: StepBalance) -> Self {
        Self {
            plan,
            held,
            balance,
            reports: ByActor::default(),
            finished_by: BTreeSet::new(),
            decision: None,
            experts: Vec::new(),
            awaited: ByActor::default(),
        }
    }

    /// Returns the ledger including this step; `before` is the ledger before it.
    pub fn ledger(&self, before: Ledger) -> Ledger {
        before.after(self.plan.step, &self.samples())
    }

    /// Returns the scheduler's state after this step, given the state `before` it and the `ledger` after it.
    pub fn state(&self, before: &SchedulerState, ledger: Ledger, costs: Option<FittedCosts>) -> SchedulerState {
        let (cursor, held, products) = (self.plan.cursor, self.held.clone(), before.products);
        SchedulerState { held, ledger, costs, products, ..SchedulerState::at(cursor) }
    }

    /// Returns the times of each actor that has reduced.
    pub fn timings(&self) -> Vec<(ActorId, Timings)> {
        self.reports.iter().map(|(actor, report)| (actor, report.timings)).collect()
    }

    /// Returns whether it is decided that the step is committed or aborted.
    pub fn is_decided(&self) -> bool {
        self.decision.is_some()
    }

    /// Returns whether the step trains nothing.
    pub fn is_evaluation(&self) -> bool {
        self.plan.purpose.is_evaluation()
    }

    /// Returns whether it is decided, and the next step has its parameters.
    pub fn ends_step(&self) -> bool {
        self.is_decided() && !self.is_evaluation()
    }

    /// Returns the results of an evaluation once all engines have reported; from then on they are to drop it.
    pub fn conclude(&mut self, engines: &[ActorId]) -> Option<EvaluationReport> {
        if self.is_decided() || !engines.iter().all(|&engine| self.reports.contains(engine)) {
            return None;
        }
        let mut found = EvaluationReport { num_correct: Some(0), ..EvaluationReport::default() };
        self.reports.iter().filter_map(|(_, report)| report.evaluation.clone()).for_each(|report| found.add(*report));
        self.decision = Some(Decision { loss: found.loss_sum, grad_norm: 0.0, commit: None });
        self.awaited = engines.iter().copied().collect();
        Some(found)
    }

    /// Begins another epoch of `pool`: units of encoders that left go to its workers, and its encoders report again. Returns these
    /// units.
    pub fn share_out(&mut self, left: &[u32], pool: &EncoderPool) -> Vec<UnitId> {
        let mut moved = Vec::new();
        let gone = |unit: &Unit| pool.has(unit) && left.contains(&unit.encoder.index);
        if self.plan.units.iter().any(gone) {
            let plan = Arc::make_mut(&mut self.plan);
            for unit in plan.units.iter_mut().filter(|unit| gone(unit)) {
                unit.encoder = pool.worker(unit.lane.0, 0);
                moved.push(unit.id);
            }
        }
        self.reports.clear(pool.name);
        self.finished_by.retain(|encoder| encoder.pool != pool.name);
        moved
    }

    /// Returns the unit if it is this encoder's.
    pub fn unit_of(&self, encoder: ActorId, id: UnitId) -> Option<&Unit> {
        self.plan.unit(id).filter(|unit| unit.encoder == Replica::new(encoder.pool, encoder.index))
    }

    /// Assigns these units to nobody.
    pub fn skip(&mut self, units: &[UnitId]) {
        let plan = Arc::make_mut(&mut self.plan);
        plan.units.iter_mut().filter(|unit| units.contains(&unit.id)).for_each(|unit| unit.encoder.index = SKIPPED);
    }

    /// Records that an encoder has finished its units.
    pub fn finished(&mut self, encoder: ActorId) {
        self.finished_by.insert(encoder);
    }

    /// Returns whether all these encoders have finished their units.
    pub fn is_finished_by(&self, mut encoders: impl Iterator<Item = ActorId>) -> bool {
        encoders.all(|encoder| self.finished_by.contains(&encoder))
    }

    /// Returns whether an actor has reported its reduced gradients.
    pub fn has_reduced(&self, actor: ActorId) -> bool {
        self.reports.contains(actor)
    }

    /// Returns false if too few engines have reported: a cheap check, since it runs at every event of thousands of engines.
    pub fn may_be_decided(&self, num_engines: usize) -> bool {
        self.decision.is_none() && self.reports.len() >= num_engines
    }

    /// # Errors
    /// Fails if the engine reports for the second time.
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
    /// pool's first one counts. Where there are several foundation pools, each is clipped by the norm of its own, and all encoders
    /// by theirs. `engines`: those that take part, pool after pool, in the order of their ranks. With
    /// `drops` it is skipped in any case.
    pub fn decide(&mut self, engines: &[ActorId], pools: &PoolSizes, clip_grad: f64, drops: bool) -> Option<Decision> {
        if self.decision.is_some() || !engines.iter().all(|&engine| self.reports.contains(engine)) {
            return None;
        }
        let report = |actor| self.reports.get(actor).expect("all engines have reported");
        let loss = pools.foundation_actors().map(|actor| report(actor).loss).sum::<f64>();
        let of_pools = engines.chunk_by(|one, next| one.pool == next.pool);
        let squares = of_pools.map(|pool| report(pool[0]).grad_square_sum).sum::<f64>();
        let grad_norm = squares.sqrt();
        let clip = |norm: f64| if clip_grad > 0.0 { (clip_grad / (norm + 1e-6)).min(1.0) } else { 1.0 };
        let mut experts = Vec::new();
        let mut clipped = grad_norm;
        if pools.foundations.len() > 1 {
            experts.extend(pools.foundations.iter().map(|pool| self.expert(*pool, clip)));
            let of_encoders = engines.chunk_by(|one, next| one.pool == next.pool);
            let of_encoders = of_encoders.filter(|pool| pool[0].role == Role::Encoder);
            clipped = of_encoders.map(|pool| report(pool[0]).grad_square_sum).sum::<f64>().sqrt();
        }
        let commit = (!drops && loss.is_finite() && grad_norm.is_finite()).then(|| Commit {
            step: self.plan.step,
            clip_scale: clip(clipped),
            learning_rate: self.plan.learning_rate,
        });
        self.experts = experts;
        self.decision = Some(Decision { loss, grad_norm, commit });
        self.awaited = engines.iter().copied().collect();
        self.decision
    }

    /// Returns the results of one of several foundation pools: its loss and norm are those of a run of its own with these samples.
    fn expert(&self, pool: PoolSize, clip: impl Fn(f64) -> f64) -> ExpertStep {
        let samples =
            || self.plan.packs.iter().filter(|pack| pack.replica.pool == pool.name).flat_map(|pack| &pack.samples);
        let num_targets = samples().map(|sample| u64::from(sample.num_targets)).sum::<u64>();
        let whole = if num_targets == 0 { 0.0 } else { self.plan.num_targets as f64 / num_targets as f64 };
        let reports =
            || (0..pool.actors).filter_map(|index| self.reports.get(ActorId::foundation_of(pool.name, index)));
        let square_sum = reports().next().map_or(0.0, |report| report.grad_square_sum);
        let grad_norm = square_sum.sqrt() * whole;
        ExpertStep {
            pool: pool.name,
            num_samples: samples().count(),
            num_targets,
            loss: reports().map(|report| report.loss).sum::<f64>() * whole,
            grad_norm,
            scale: whole * clip(grad_norm),
        }
    }

    /// Returns the command to an engine once the step is decided: an expert without samples in the step drops its gradient of
    /// zeros.
    ///
    /// # Panics
    /// Nothing was decided.
    pub fn command_for(&self, actor: ActorId) -> Command {
        let decision = self.decision.expect("a step is decided before engines are told");
        let Some(commit) = decision.commit else { return Command::Abort { step: self.plan.step } };
        match self.experts.iter().find(|expert| expert.pool == actor.pool) {
            Some(expert) if expert.num_targets == 0 => Command::Abort { step: self.plan.step },
            Some(expert) => Command::Commit(Commit { clip_scale: expert.scale, ..commit }),
            None => Command::Commit(commit),
        }
    }

    /// Returns whether an actor has not yet applied the decision.
    pub fn awaits(&self, actor: ActorId) -> bool {
        self.awaited.contains(actor)
    }

    /// Records that an engine has applied the decision; returns whether all have.
    ///
    /// # Errors
    /// Fails if nothing was decided yet, or the engine reports for the second time.
    pub fn applied(&mut self, actor: ActorId) -> Result<bool, String> {
        if self.awaited.remove(actor).is_none() {
            return Err(format!("applied step {} twice or before it was decided", self.plan.step));
        }
        Ok(self.awaited.is_empty())
    }

    /// Records that the actor is gone and need not apply the decision; returns whether all others have.
    pub fn lose(&mut self, actor: ActorId) -> bool {
        self.awaited.remove(actor).is_some() && self.awaited.is_empty()
    }

    /// Returns the batch from which it was planned: samples, or packs of a packed stream.
    pub fn batch(&self, is_packed: bool) -> Batch {
        let packs = self.plan.packs.iter().map(|pack| pack.samples.clone());
        if is_packed {
            return Batch::Packs(packs.collect());
        }
        let mut samples: Vec<SampleMeta> = packs.flatten().collect();
        samples.sort_unstable_by_key(|sample| sample.id);
        Batch::Samples(samples)
    }

    /// Returns the ids of its samples, ascending.
    pub fn samples(&self) -> Vec<SampleId> {
        let mut ids: Vec<_> =
            self.plan.packs.iter().flat_map(|pack| pack.samples.iter().map(|sample| sample.id)).collect();
        ids.sort_unstable();
        ids
    }

    /// Sums over the foundation's ranks in order.
    fn pairs(&self) -> Option<PairReport> {
        let of_pool = self.reports.iter().filter(|(actor, _)| actor.role == Role::Foundation);
        of_pool.filter_map(|(_, report)| report.pairs.as_deref().copied()).reduce(|sum, part| sum.plus(&part))
    }

    /// The losses are sums over the foundation's ranks in their order; the loads are the pool's, those of each layer from the
    /// first rank that has it.
    fn routing(&self) -> Option<RoutingReport> {
        let of_pool = self.reports.iter().filter(|(actor, _)| actor.role == Role::Foundation);
        let mut reports = of_pool.filter_map(|(_, report)| report.routing.clone());
        let mut whole = reports.next()?;
        for other in reports {
            let parts = [
                (&mut whole.aux_loss, other.aux_loss),
                (&mut whole.z_loss, other.z_loss),
                (&mut whole.indexer_loss, other.indexer_loss),
            ];
            for (sum, part) in parts {
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
    pub fn summary(&self, before: Ledger, costs: Option<FittedCosts>) -> StepSummary {
        let Decision { loss, grad_norm, commit } = self.decision.expect("a step is decided before it is applied");
        let timings = self.timings();
        let mut balance = self.balance;
        balance.measure(&timings);
        StepSummary {
            step: self.plan.step,
            loss,
            grad_norm,
            experts: self.experts.clone(),
            routing: self.routing(),
            pairs: self.pairs(),
            learning_rate: self.plan.learning_rate,
            num_samples: self.plan.packs.iter().map(|pack| pack.samples.len()).sum(),
            num_tokens: self.plan.num_tokens(),
            num_targets: self.plan.num_targets,
            num_items: self.plan.num_items(),
            num_packs: self.plan.packs.len(),
            applied: commit.is_some(),
            skipped: if commit.is_some() { Vec::new() } else { self.samples() },
            timings,
            balance,
            ledger: self.ledger(before),
            stragglers: Vec::new(),
            costs,
        }
    }
}

#[cfg(test)]
#[path = "step_tests.rs"]
mod tests;
