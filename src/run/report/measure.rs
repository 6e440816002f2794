//! The metrics of a step, from what its engines reported.

use super::Report;
use loongforge_actors::checkpoint::Uploader;
use loongforge_core::message::{MemoryReport, PoolName, Role, Timings};
use loongforge_core::observe::{ExpertMetrics, PairMetrics, PoolMetrics, StepMetrics};
use loongforge_core::schedule::{ExpertStep, FittedCosts, StepSummary};
use std::collections::{BTreeMap, BTreeSet};

impl Report {
    /// Makes the metrics of a step that ends now.
    pub(super) fn measure(&mut self, summary: &StepSummary) -> StepMetrics {
        let seconds = self.times.ended(summary);
        let costs: BTreeMap<PoolName, _> = summary.costs.iter().flat_map(FittedCosts::seconds).collect();
        let cost = |pool| costs.get(&pool).copied().flatten();
        let [bad_samples, too_long] = self.skipped.counts();
        StepMetrics {
            step: summary.step.0,
            loss: summary.loss,
            grad_norm: summary.grad_norm,
            experts: summary.experts.iter().map(expert).collect(),
            learning_rate: summary.learning_rate,
            tokens: summary.num_tokens as u64,
            images: summary.num_items as u64,
            cached_images: summary.timings.iter().map(|(_, timings)| u64::from(timings.cached_items)).sum(),
            tokens_per_s: summary.num_tokens as f64 / seconds,
            images_per_s: summary.num_items as f64 / seconds,
            step_ms: seconds * 1e3,
            active_s: self.times.active(),
            encoder_busy: busy(of_role(summary, Role::Encoder)),
            foundation_busy: busy(of_role(summary, Role::Foundation)),
            pack_fill: summary.balance.fill,
            encoder_imbalance: summary.balance.encoder.predicted,
            foundation_imbalance: summary.balance.foundation.predicted,
            encoder_imbalance_measured: summary.balance.encoder.measured,
            foundation_imbalance_measured: summary.balance.foundation.measured,
            pools: pools(summary)
                .into_iter()
                .map(|(pool, metrics)| (pool, PoolMetrics { cost: cost(pool), ..metrics }))
                .collect(),
            encoder_cost: cost(PoolName::ENCODER),
            foundation_cost: cost(PoolName::FOUNDATION),
            mfu: self.utilization.as_ref().map(|utilization| utilization.mfu(summary, seconds)),
            aux_loss: summary.routing.as_ref().and_then(|routing| routing.aux_loss),
            z_loss: summary.routing.as_ref().and_then(|routing| routing.z_loss),
            indexer_loss: summary.routing.as_ref().and_then(|routing| routing.indexer_loss),
            pairs: summary.pairs.as_ref().and_then(PairMetrics::of),
            expert_loads: summary.routing.as_ref().map_or(Vec::new(), |routing| routing.loads.clone()),
            encoder_memory: memory(of_role(summary, Role::Encoder)),
            foundation_memory: memory(of_role(summary, Role::Foundation)),
            ledger: summary.ledger.to_string(),
            skipped: !summary.applied,
            bad_samples,
            eval_loss: std::mem::take(&mut self.eval_loss),
            too_long,
            uncopied_checkpoints: self.uploader.as_ref().map_or(0, Uploader::num_failed),
        }
    }
}

fn of_role(summary: &StepSummary, role: Role) -> impl Iterator<Item = &Timings> {
    summary.timings.iter().filter(move |(actor, _)| actor.role == role).map(|(_, timings)| timings)
}

/// Returns the name and the metrics of one of several foundation pools.
fn expert(expert: &ExpertStep) -> (PoolName, ExpertMetrics) {
    let &ExpertStep { pool, num_samples, num_targets, loss, grad_norm, .. } = expert;
    (pool, ExpertMetrics { samples: num_samples as u64, loss: (num_targets > 0).then_some(loss), grad_norm })
}

/// Returns the encoder pools, where there are others than `encoder`, and the foundation pools, where there are several.
fn pools(summary: &StepSummary) -> BTreeMap<PoolName, PoolMetrics> {
    let of_role =
        |role| summary.timings.iter().filter(move |(actor, _)| actor.role == role).map(|(actor, _)| actor.pool);
    let [encoders, foundations] = [Role::Encoder, Role::Foundation].map(|role| of_role(role).collect::<BTreeSet<_>>());
    let has_own = encoders.iter().any(|&name| name != PoolName::ENCODER);
    let encoders = encoders.into_iter().filter(|_| has_own);
    let several = foundations.len() > 1;
    let names = encoders.chain(foundations.into_iter().filter(|_| several));
    let of_pool =
        |name| summary.timings.iter().filter(move |(actor, _)| actor.pool == name).map(|(_, timings)| timings);
    let metrics = |name: PoolName| PoolMetrics {
        actors: of_pool(name).count(),
        busy: busy(of_pool(name)),
        cost: None,
        memory: memory(of_pool(name)),
    };
    names.map(|name| (name, metrics(name))).collect()
}

/// Returns the memory of the tensors of the actor, of these, that has taken the most.
fn memory<'a>(timings: impl Iterator<Item = &'a Timings>) -> Option<MemoryReport> {
    timings.map(|timings| timings.memory).max_by_key(MemoryReport::total).filter(|memory| memory.total() > 0)
}

/// Returns the share of the time in which these engines computed.
fn busy<'a>(timings: impl Iterator<Item = &'a Timings>) -> f64 {
    let (busy, whole) =
        timings.fold((0.0, 0.0), |(busy, whole), timings| (busy + timings.busy, whole + timings.busy + timings.idle));
    if whole > 0.0 { busy / whole } else { 0.0 }
}
