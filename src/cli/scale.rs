//! `loongforge scale`: more or fewer encoders for a run that goes on.

use super::UsageError;
use clap::Args;
use loongforge_actors::launch::scale_run;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Name of the scheduler's socket, or of the link to it, in a run's folder.
pub const SOCKET: &str = "scheduler.sock";

#[derive(Args)]
pub struct ScaleArgs {
    /// Encoders that the run is to have
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    encoders: u32,
    /// Folder of the run (`run.dir`)
    #[arg(long, value_name = "DIR", required_unless_present = "join")]
    run: Option<PathBuf>,
    /// Unix socket of the run's scheduler
    #[arg(long, value_name = "SOCKET", conflicts_with = "run")]
    join: Option<PathBuf>,
}

pub fn scale(args: ScaleArgs) -> anyhow::Result<ExitCode> {
    let address = match (args.join, args.run) {
        (Some(address), _) => address,
        (None, Some(dir)) => find(&dir)?,
        (None, None) => unreachable!("clap requires one of the two"),
    };
    let from = scale_run(&address, args.encoders)?;
    println!("{from} → {} encoders", args.encoders);
    Ok(ExitCode::SUCCESS)
}

/// The socket of the run that goes on in `dir`.
fn find(dir: &Path) -> anyhow::Result<PathBuf> {
    let link = dir.join(SOCKET);
    match std::fs::read_link(&link) {
        Ok(address) => Ok(address),
        Err(_) => {
            let what = format!("no run with processes goes on in {}: it has no {SOCKET}", dir.display());
            Err(UsageError(what).into())
        }
    }
}
