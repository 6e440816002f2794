//! `loongforge data diffusion-digits` and `diffusion-motion`: the examples of diffusion models.

use crate::cli::outputs::local_path;
use clap::Args;
use loongforge_core::data::DataError;
use loongforge_core::data::diffusion_sets::{
    Composed, DiffusionDigits, DiffusionMotion, compose_digits, compose_motion,
};
use std::path::PathBuf;
use std::process::ExitCode;

const OF_DIGITS: &str = "\
Example:
  loongforge data diffusion-digits --out runs/diffusion_digits/data
  loongforge run configs/diffusion_digits.yaml";

const OF_MOTION: &str = "\
Example:
  loongforge data diffusion-motion --out runs/diffusion_motion/data
  loongforge run configs/diffusion_motion.yaml";

#[derive(Args)]
#[command(after_help = OF_DIGITS)]
pub struct DigitsArgs {
    #[command(flatten)]
    to: To,
}

#[derive(Args)]
#[command(after_help = OF_MOTION)]
pub struct MotionArgs {
    #[command(flatten)]
    to: To,
}

#[derive(Args)]
struct To {
    /// Folder to write
    #[arg(long, value_name = "FOLDER", value_parser = local_path())]
    out: PathBuf,
    /// Seed of the samples
    #[arg(long, default_value_t = DiffusionDigits::default().seed)]
    seed: u64,
}

/// Runs `loongforge data diffusion-digits`: writes pictures of numbers with captions, and a model folder without weights.
pub fn digits(args: DigitsArgs) -> anyhow::Result<ExitCode> {
    let DigitsArgs { to } = args;
    told(&to, compose_digits(&to.out, &DiffusionDigits { seed: to.seed, ..DiffusionDigits::default() }))
}

/// Runs `loongforge data diffusion-motion`: writes clips of moving digits with captions, and a model folder without weights.
pub fn motion(args: MotionArgs) -> anyhow::Result<ExitCode> {
    let MotionArgs { to } = args;
    told(&to, compose_motion(&to.out, &DiffusionMotion { seed: to.seed, ..DiffusionMotion::default() }))
}

fn told(to: &To, made: Result<Composed, DataError>) -> anyhow::Result<ExitCode> {
    let made = made?;
    println!("{} training and {} held-out samples in {}", made.num_train, made.num_held_out, to.out.display());
    println!("model folder, without weights: {}", to.out.join("model").display());
    Ok(ExitCode::SUCCESS)
}
