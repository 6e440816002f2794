//! `loongforge data pads`: the example of robot policies.

use crate::cli::outputs::local_path;
use clap::Args;
use loongforge_core::robot::pads::{PadsSet, Written, compose_pads};
use loongforge_core::text::grouped;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Example:
  loongforge data pads --out runs/pads_policy/data
  loongforge run configs/pads_policy.yaml";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct PadsArgs {
    /// Folder to write
    #[arg(long, value_name = "FOLDER", value_parser = local_path())]
    out: PathBuf,
    /// Seed of the demonstrations
    #[arg(long, default_value_t = PadsSet::default().seed)]
    seed: u64,
    /// Number of demonstrations; with too few, layouts are memorized
    #[arg(long, value_name = "N", default_value_t = PadsSet::default().num_episodes, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    episodes: u64,
}

/// Runs `loongforge data pads`: writes demonstrations of the task Pads, and a model folder without weights.
pub fn pads(args: PadsArgs) -> anyhow::Result<ExitCode> {
    let PadsArgs { out, seed, episodes } = args;
    let Written { num_episodes, num_frames, num_successes } =
        compose_pads(&out, &PadsSet { seed, num_episodes: episodes })?;
    let [num_episodes, num_frames, num_successes] = [num_episodes, num_frames, num_successes].map(grouped);
    println!(
        "{num_episodes} demonstrations of {num_frames} frames in {} ({num_successes} end on the pad)",
        out.join("train").display()
    );
    println!("model folder, without weights: {}", out.join("model").display());
    Ok(ExitCode::SUCCESS)
}
