//! `loongforge trace`: the timeline of a run's last steps, for `ui.perfetto.dev` or `chrome://tracing`.

use super::UsageError;
use anyhow::Context;
use clap::Args;
use loongforge_actors::watch::{TRACE_FILE, get, has_ended};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  loongforge trace runs/my -o trace.json      of a running or finished job
Open the file at ui.perfetto.dev or chrome://tracing: one row per actor, from all processes, on one clock.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct TraceArgs {
    /// Folder of the run, or the address that the run printed
    #[arg(value_name = "RUN")]
    run: Option<String>,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
}

/// Runs `loongforge trace`: writes the last steps of a running or finished job as a trace.
pub fn trace(args: TraceArgs) -> anyhow::Result<ExitCode> {
    // A run that has ended has left its last steps in its folder.
    let left = args.run.as_ref().map(|run| Path::new(run).join(TRACE_FILE));
    let is_last = |path: &&PathBuf| path.is_file() && path.parent().is_some_and(has_ended);
    let bytes = match left.as_ref().filter(is_last) {
        Some(path) => fs::read(path).with_context(|| path.display().to_string())?,
        None => get(&super::top::target(args.run.as_deref())?, "/trace.json").map_err(UsageError::of)?,
    };
    fs::write(&args.out, bytes).with_context(|| args.out.display().to_string())?;
    println!("{}: open it at ui.perfetto.dev", args.out.display());
    Ok(ExitCode::SUCCESS)
}
