//! The use of the devices' FLOPs.

use crate::model::folder::ModelFolder;
use crate::model::size::ModelSize;
use loongforge_core::config::{Device, EncoderPool, Placement, Precision, RunConfig};
use loongforge_core::observe::{peak_flops, visible_gpus};
use loongforge_core::schedule::StepSummary;

/// The numbers from which the model FLOPs utilization is computed. Only the language model's FLOPs count, so that the utilization is a
/// lower bound where there is an encoder; recomputation does not count.
pub(super) struct Utilization {
    size: ModelSize,
    /// The peak of a device, FLOP/s.
    peak: f64,
    num_devices: usize,
}

impl Utilization {
    /// Prepares the utilization of a run; `None` where the device's peak is not known.
    pub(super) fn of(config: &RunConfig, folder: &ModelFolder) -> Option<Self> {
        let is_bf16 = config.train.precision == Precision::Bf16;
        let known = || match config.device {
            Device::Cpu | Device::Auto => None,
            Device::Cuda(_) => peak_flops(&visible_gpus()?.name?, is_bf16),
        };
        let peak = config.log.peak_tflops.map(|tflops| tflops * 1e12).or_else(known)?;
        let encoders = match config.pools.placement {
            Placement::Separate => config.pools.encoders(folder.config.towers.set()),
            Placement::Colocated => Vec::new(),
        };
        let encoders: Vec<&EncoderPool> = encoders.into_iter().map(|(_, pool, _)| pool).collect();
        Some(Self { size: ModelSize::of(&folder.config), peak, num_devices: num_devices(config, &encoders) })
    }

    /// All actors are on this host: they have no more devices than it has GPUs.
    pub(super) fn on_this_host(self) -> Self {
        let most = visible_gpus().map_or(usize::MAX, |gpus| gpus.number.max(1));
        Self { num_devices: self.num_devices.min(most), ..self }
    }

    /// Returns the share of the devices' peak that a step of so many seconds used (model FLOPs utilization).
    pub(super) fn mfu(&self, summary: &StepSummary, seconds: f64) -> f64 {
        // Samples of a pack do not attend to each other.
        let seq_len = summary.num_tokens / summary.num_samples.max(1);
        summary.num_tokens as f64 * self.size.flops_per_token(seq_len) / (seconds * self.peak * self.num_devices as f64)
    }
}

/// Returns the number of devices of the foundation's actors and of those of `encoders`, which have their own actors.
fn num_devices(config: &RunConfig, encoders: &[&EncoderPool]) -> usize {
    // One processor or one GPU, whoever shares it.
    if config.device != Device::Cuda(None) {
        return 1;
    }
    let foundations: usize = config.foundations().iter().map(|(_, pool)| pool.layout().ranks()).sum();
    let on_gpus = encoders.iter().filter(|pool| pool.device != Some(Device::Cpu));
    foundations + on_gpus.map(|pool| pool.layout().ranks()).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::config::load_text;

    const YAML: &str = include_str!("../../../configs/sft_text.yaml");

    #[test]
    fn encoders_on_cpus_are_no_gpus() {
        let mut config = load_text(YAML).unwrap_or_else(|report| panic!("{report}")).config;
        let pool = |replicas, device| EncoderPool { replicas, device, ..EncoderPool::default() };
        let (like_the_run, on_cpu, reads) = (pool(2, None), pool(3, Some(Device::Cpu)), pool(0, None));
        let encoders = [&like_the_run, &on_cpu, &reads];
        config.device = Device::Cuda(None);
        assert_eq!(num_devices(&config, &encoders), num_devices(&config, &[]) + 2);
        for device in [Device::Cpu, Device::Cuda(Some(1))] {
            config.device = device;
            assert_eq!(num_devices(&config, &encoders), 1);
        }
    }
}
