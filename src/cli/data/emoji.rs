//! `loongforge data emoji`: the example of real pictures with dialogues.

use crate::cli::outputs::local_path;
use anyhow::Result;
use clap::Args;
use loongforge_core::data::emoji;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Example, from packages under Apache-2.0 and CC-BY 4.0:
  npm pack emoji-datasource-google@16.0.0 emoji-datasource-twitter@16.0.0
  loongforge data emoji emoji-datasource-*.tgz --out runs/emoji/data
  loongforge run configs/emoji.yaml";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct EmojiArgs {
    /// npm packages emoji-datasource-* (.tgz)
    #[arg(required = true, value_name = "TGZ")]
    packages: Vec<PathBuf>,
    /// Folder to write
    #[arg(long, value_name = "FOLDER", value_parser = local_path())]
    out: PathBuf,
    /// Seed of the held-out split and of the order
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs `loongforge data emoji`: writes dialogues on the emoji of packages, and a model folder without weights.
pub fn emoji(args: EmojiArgs) -> Result<ExitCode> {
    let made = emoji::compose(&args.out, &args.packages, args.seed)?;
    println!("{} dialogues and {} held-out questions in {}", made.num_train, made.num_held_out, args.out.display());
    println!("model folder, without weights: {}", args.out.join("model").display());
    Ok(ExitCode::SUCCESS)
}
