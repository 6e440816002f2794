//! `loongforge data heard-and-seen`: the example with a sound and a picture in each sample.

use crate::cli::outputs::local_path;
use clap::Args;
use loongforge_core::data::heard_and_seen::{HeardAndSeen, compose};
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Example:
  loongforge data heard-and-seen --out runs/heard_and_seen/data
  loongforge run configs/heard_and_seen.yaml";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct HeardAndSeenArgs {
    /// Folder to write
    #[arg(long, value_name = "FOLDER", value_parser = local_path())]
    out: PathBuf,
    /// Seed of the pairs
    #[arg(long, default_value_t = HeardAndSeen::default().seed)]
    seed: u64,
}

/// Runs `loongforge data heard-and-seen`: writes samples with sound and pictures, and a model folder without weights.
pub fn heard_and_seen(args: HeardAndSeenArgs) -> anyhow::Result<ExitCode> {
    let made = compose(&args.out, &HeardAndSeen { seed: args.seed, ..HeardAndSeen::default() })?;
    println!("{} training and {} held-out samples in {}", made.num_train, made.num_held_out, args.out.display());
    println!("model folder, without weights: {}", args.out.join("model").display());
    Ok(ExitCode::SUCCESS)
}
