//! The use of the devices' FLOPs, and how long steps took.

use crate::model::folder::ModelFolder;
use crate::model::size::ModelSize;
use loongforge_core::config::{Device, Placement, Precision, RunConfig};
use loongforge_core::observe::{gpu_name, peak_flops};
use loongforge_core::schedule::StepSummary;

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
        let foundations: usize = config.foundations().iter().map(|(_, pool)| pool.layout().ranks()).sum();
        let num_devices = match (config.device, pools.placement, !folder.config.towers.is_empty()) {
            (Device::Cuda(None), Placement::Separate, true) => {
                let encoders = pools.encoders(folder.config.towers.set());
                let encoders = encoders.iter().map(|(_, pool, _)| pool.layout().ranks()).sum::<usize>();
                foundations + encoders
            }
            (Device::Cuda(None), ..) => foundations,
            // One processor or one GPU, whoever shares it.
            _ => 1,
        };
        Some(Self { size: ModelSize::of(&folder.config), peak: peak * num_devices as f64 })
    }

    /// Returns the share of the devices' peak that a step of so many seconds used (model FLOPs utilization).
    pub(super) fn mfu(&self, summary: &StepSummary, seconds: f64) -> f64 {
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
