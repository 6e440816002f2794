//! `loongforge judge-policy`: count a policy's successes in the task Pads.

use super::UsageError;
use crate::policy::judge::judge_pads;
use crate::policy::{Choice, open};
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "\
Examples:
  loongforge judge-policy runs/pads_policy --layouts 400 --sheet pads.png
  loongforge judge-policy --policy pads-expert")]
pub struct JudgePolicyArgs {
    /// Checkpoint of a run, a run's folder (its newest checkpoint), or any folder of a policy
    checkpoint: Option<String>,
    /// Which policy acts
    #[arg(long, value_enum, default_value = "trained")]
    policy: Choice,
    /// Layouts to judge on; no demonstration has one of them
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    layouts: u32,
    /// Seed of the layouts and of the policy's noise
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// PNG to write, with frames of the first episodes
    #[arg(long, value_name = "FILE")]
    sheet: Option<PathBuf>,
}

pub fn judge_policy(args: JudgePolicyArgs) -> anyhow::Result<ExitCode> {
    let usage = |error: anyhow::Error| UsageError::of(error.as_ref());
    let mut policy = open(args.policy, args.checkpoint.as_deref(), args.seed).map_err(usage)?;
    let judged = judge_pads(policy.as_mut(), args.seed, args.layouts as usize, |trial| eprintln!("judging: {trial}"))?;
    println!("{}", judged.text());
    if let Some(path) = &args.sheet {
        judged.save(path)?;
        println!("frames of the first episodes: {}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}
