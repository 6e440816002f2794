//! `loongforge data digits`: the quick start's pictures and model folder.

use crate::cli::outputs::local_path;
use clap::Args;
use loongforge_core::data::digits;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "Example:\n  loongforge data digits --out runs/quickstart/data")]
pub struct DigitsArgs {
    /// Output folder; files that are complete already are kept
    #[arg(long, value_name = "FOLDER", value_parser = local_path())]
    out: PathBuf,
}

/// Runs `loongforge data digits`: writes the quick start's data and its model folder.
pub fn digits(args: DigitsArgs) -> anyhow::Result<ExitCode> {
    let out = args.out;
    let digits = digits::Digits::default();
    let made = digits::compose(&out, &digits)?;
    let model = out.join("model");
    digits::write_model(&model, &digits::MODEL)?;
    let (train, held_out) = (digits.num_train, digits.num_held_out);
    let what = if made { "made" } else { "found" };
    println!("{what} {train} training and {held_out} held-out pictures in {}", out.display());
    println!("model folder, without weights: {}", model.display());
    Ok(ExitCode::SUCCESS)
}
