//! The metrics of a step, from what its engines reported.

use super::Report;
use crate::model::folder::ModelFolder;
use crate::model::size::ModelSize;
use loongforge_core::config::{Device, Placement, Precision, RunConfig};
use loongforge_core::message::{MemoryReport, Role, Timings};
use loongforge_core::observe::{StepMetrics, gpu_name, peak_flops};
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

/// Holds what the model FLOPs utilization is computed from. Only the language model's FLOPs count, so that it is a
/// lower bound where there is an encoder, and recomputation does not.
pub(super) struct Utilization {
    size: ModelSize,
    /// The peak of all devices together, FLOP/s.
    peak: f64,
}

impl Utilization {
    /// `None` where the device's peak is not known.
    pub(super) fn of(config: &RunConfig, folder: &ModelFolder) -> Option<Self> {
        let is_bf16 = config.train.precision == Precision::Bf16;
        let known = || match config.device {
            Device::Cpu | Device::Auto => None,
            Device::Cuda(_) => peak_flops(&gpu_name()?, is_bf16),
        };
        let peak = config.log.peak_tflops.map(|tflops| tflops * 1e12).or_else(known)?;
        let pools = &config.pools;
        let num_devices = match (config.device, pools.placement, !folder.config.towers.is_empty()) {
            (Device::Cuda(None), Placement::Separate, true) => {
                pools.foundation.layout().ranks() + pools.encoder.layout().ranks()
            }
            (Device::Cuda(None), ..) => pools.foundation.layout().ranks(),
            // One processor or one GPU, whoever shares it.
            _ => 1,
        };
        Some(Self { size: ModelSize::of(&folder.config, &folder.json), peak: peak * num_devices as f64 })
    }

    fn mfu(&self, summary: &StepSummary, seconds: f64) -> f64 {
        // Samples of a pack do not attend to each other.
        let seq_len = summary.num_tokens / summary.num_samples.max(1);
        summary.num_tokens as f64 * self.size.flops_per_token(seq_len) / (seconds * self.peak)
    }
}

/// Fewer steps say nothing of the slow ones.
const MIN_STEPS: usize = 20;

/// Returns how long steps took: the median, and what the slowest of twenty took at least.
pub(super) fn durations(seconds: &mut [f64]) -> Option<String> {
    if seconds.len() < MIN_STEPS {
        return None;
    }
    seconds.sort_by(f64::total_cmp);
    let at = |part: usize| 1e3 * seconds[(seconds.len() * part / 100).min(seconds.len() - 1)];
    Some(format!("median step {:.0} ms, slowest 5 % over {:.0} ms", at(50), at(95)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_steps_are_told_apart_from_the_median() {
        assert_eq!(durations(&mut [1.0; 5]), None);
        let mut seconds = [0.044; 40];
        seconds[3..6].fill(0.31);
        assert_eq!(durations(&mut seconds).unwrap(), "median step 44 ms, slowest 5 % over 310 ms");
    }
}
