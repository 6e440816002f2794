//! The metrics of a step, from what its engines reported.

use super::Report;
use loongforge_core::message::{MemoryReport, Role, Timings};
use loongforge_core::observe::StepMetrics;
use loongforge_core::schedule::{FittedCosts, StepSummary};
use std::time::Instant;

impl Report {
    pub(super) fn measure(&mut self, summary: &StepSummary) -> StepMetrics {
        let seconds = self.last_step.elapsed().as_secs_f64();
        self.last_step = Instant::now();
        if self.num_steps > 0 {
            self.step_seconds.push(seconds);
        }
        self.num_steps += 1;
        let [encoder_cost, foundation_cost] = summary.costs.as_ref().map_or([None; 2], FittedCosts::seconds);
        StepMetrics {
            step: summary.step.0,
            loss: summary.loss,
            grad_norm: summary.grad_norm,
            learning_rate: summary.learning_rate,
            tokens: summary.num_tokens as u64,
            images: summary.num_items as u64,
            cached_images: summary.timings.iter().map(|(_, timings)| u64::from(timings.cached_items)).sum(),
            tokens_per_s: summary.num_tokens as f64 / seconds,
            images_per_s: summary.num_items as f64 / seconds,
            step_ms: seconds * 1e3,
            encoder_busy: busy(summary, Role::Encoder),
            foundation_busy: busy(summary, Role::Foundation),
            pack_fill: summary.balance.fill,
            encoder_imbalance: summary.balance.encoder.predicted,
            foundation_imbalance: summary.balance.foundation.predicted,
            encoder_imbalance_measured: summary.balance.encoder.measured,
            foundation_imbalance_measured: summary.balance.foundation.measured,
            encoder_cost,
            foundation_cost,
            mfu: self.utilization.as_ref().map(|utilization| utilization.mfu(summary, seconds)),
            aux_loss: summary.routing.as_ref().and_then(|routing| routing.aux_loss),
            z_loss: summary.routing.as_ref().and_then(|routing| routing.z_loss),
            indexer_loss: summary.routing.as_ref().and_then(|routing| routing.indexer_loss),
            expert_loads: summary.routing.as_ref().map_or(Vec::new(), |routing| routing.loads.clone()),
            encoder_memory: memory(summary, Role::Encoder),
            foundation_memory: memory(summary, Role::Foundation),
            ledger: summary.ledger.to_string(),
            skipped: !summary.applied,
            bad_samples: self.bad.len(),
            eval_loss: std::mem::take(&mut self.eval_loss),
            too_long: self.too_long.len(),
        }
    }
}

/// Returns what the tensors of the role's actor took that has taken the most.
fn memory(summary: &StepSummary, role: Role) -> Option<MemoryReport> {
    let of_role = summary.timings.iter().filter(|(actor, _)| actor.role == role).map(|(_, timings)| timings.memory);
    of_role.max_by_key(MemoryReport::total).filter(|memory| memory.total() > 0)
}

/// Share of the time in which the engines of a role computed.
fn busy(summary: &StepSummary, role: Role) -> f64 {
    let of_role = summary.timings.iter().filter(|(actor, _)| actor.role == role);
    let (busy, whole) = of_role.fold((0.0, 0.0), |(busy, whole), (_, timings): &(_, Timings)| {
        (busy + timings.busy, whole + timings.busy + timings.idle)
    });
    if whole > 0.0 { busy / whole } else { 0.0 }
}
