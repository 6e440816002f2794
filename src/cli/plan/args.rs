//! Arguments of `loongforge plan`.

use crate::cli::asking::{at_least_one, not_negative, part, positive};
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  loongforge plan my.yaml                                       packs of the first steps, memory of every actor
  loongforge plan my.yaml --simulate --calibrate runs/my        step time, calibrated from a run on this machine
  loongforge plan my.yaml --simulate --calibrate runs/my pools.encoder.replicas=4
  loongforge plan my.yaml --simulate --device H200 --mfu 0.4 --devices 64     the best ratio and placement on 64 GPUs
  loongforge plan my.yaml --simulate --device H200 --stages 4 --gantt step.html
  loongforge plan my.yaml --simulate --device H200 --law vlm    without the data set: sft, vlm, longtail or a JSON file

Costs come from one of --calibrate, --costs, --device. Calibrate from runs with batches of several sizes: if all steps are
alike, the cost per token cannot be separated from the cost per batch.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct PlanArgs {
    /// Config of the run
    pub(super) file: PathBuf,
    /// Overrides: key=value, +new=value, ~key, group=option
    #[arg(value_name = "KEY=VALUE")]
    pub(super) overrides: Vec<String>,
    /// Number of steps to plan or simulate
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) steps: Option<u64>,
    /// Run the real scheduler on a virtual clock
    #[arg(long)]
    pub(super) simulate: bool,
    /// Calibrate costs from finished runs on the target machine
    #[arg(long, value_name = "RUN_DIR", requires = "simulate", conflicts_with_all = ["costs", "device"])]
    pub(super) calibrate: Vec<PathBuf>,
    /// Read costs from a file written by --save-costs
    #[arg(long, value_name = "FILE", requires = "simulate", conflicts_with = "device")]
    pub(super) costs: Option<PathBuf>,
    /// Write the costs as JSON
    #[arg(long, value_name = "FILE", requires = "simulate")]
    pub(super) save_costs: Option<PathBuf>,
    /// Estimate costs from FLOPs on this GPU: H200, H100, A100 …
    #[arg(long, value_name = "GPU", requires = "simulate")]
    pub(super) device: Option<String>,
    /// Fraction of the device's peak FLOP/s that a run reaches (MFU)
    #[arg(long, default_value_t = 0.4, value_name = "SHARE", requires = "device", value_parser = part)]
    pub(super) mfu: f64,
    /// Draw samples from a distribution instead of the config's data: sft, vlm, longtail, or a JSON histogram
    #[arg(long, value_name = "LAW", requires = "simulate")]
    pub(super) law: Option<String>,
    /// Number of samples to measure; a longer run repeats them
    #[arg(long, default_value_t = 2048, value_name = "N", value_parser = at_least_one)]
    pub(super) samples: usize,
    /// Cores shared by all actors [default on the CPU: those of this machine]
    #[arg(long, value_name = "CORES", requires = "simulate", value_parser = positive)]
    pub(super) cores: Option<f64>,
    /// Pipeline stages of a foundation replica [default: from the config]
    #[arg(long, value_name = "P", requires = "simulate", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) stages: Option<u32>,
    /// Relative standard deviation of every duration
    #[arg(long, default_value_t = 0.0, value_name = "SHARE", requires = "simulate", value_parser = not_negative)]
    pub(super) jitter: f64,
    /// Seed of jitter and distribution
    #[arg(long, default_value_t = 1, value_name = "SEED", requires = "simulate")]
    pub(super) seed: u64,
    /// Latency of a message between actors in microseconds, added to that measured by --calibrate
    #[arg(long, default_value_t = 0.0, value_name = "MICROSECONDS", requires = "simulate", value_parser = not_negative)]
    pub(super) latency: f64,
    /// Bandwidth of one device in GB/s, also for reductions
    #[arg(long, value_name = "GB/S", requires = "simulate", value_parser = positive)]
    pub(super) bandwidth: Option<f64>,
    /// Search ratios and placements on N devices
    #[arg(long, value_name = "N", requires = "simulate", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(super) devices: Option<u32>,
    /// Draw a timeline of the steps after the warm-up: .svg or .html
    #[arg(long, value_name = "FILE", requires = "simulate")]
    pub(super) gantt: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long, requires = "simulate")]
    pub(super) json: bool,
}
