//! The use of the devices' FLOPs.

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
