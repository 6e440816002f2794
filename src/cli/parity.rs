//! `loongforge parity`: reference numbers of fixtures against ours.

use clap::Args;
use loongforge_torch::train::parity::parity as compare;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
pub struct ParityArgs {
    /// Fixture folders: config.json, model.safetensors, inputs.safetensors, expected.safetensors
    #[arg(required = true, value_name = "DIR")]
    folders: Vec<PathBuf>,
}

pub fn parity(args: ParityArgs) -> anyhow::Result<ExitCode> {
    let mut ok = true;
    for folder in &args.folders {
        match compare(folder) {
            Ok(report) => {
                println!("{}\n{report}", folder.display());
                ok &= report.is_ok();
            }
            Err(error) => {
                eprintln!("error: {}: {error}", folder.display());
                ok = false;
            }
        }
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::from(super::exit::FAILED) })
}
