//! `loongforge data spoken-digits`: the example of sound.

use crate::cli::outputs::local_path;
use clap::Args;
use loongforge_core::data::spoken_digits;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Example:
  loongforge data spoken-digits --out runs/spoken_digits/data
  loongforge run configs/spoken_digits.yaml";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct SpokenDigitsArgs {
    /// Folder to write
    #[arg(long, value_name = "FOLDER", value_parser = local_path())]
    out: PathBuf,
}

/// Runs `loongforge data spoken-digits`: writes recordings of synthetic voices, and a model folder without weights.
pub fn spoken_digits(args: SpokenDigitsArgs) -> anyhow::Result<ExitCode> {
    let made = spoken_digits::compose(&args.out)?;
    let (train, held_out) = (made.num_train, made.num_held_out);
    println!("{train} training and {held_out} held-out recordings of synthetic voices in {}", args.out.display());
    println!("model folder, without weights: {}", args.out.join("model").display());
    Ok(ExitCode::SUCCESS)
}
