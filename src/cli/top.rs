//! `loongforge top`: a run's figures in the terminal, again and again.

use super::UsageError;
use clap::Args;
use loongforge_actors::watch::{ClientError, Target, WATCH_FILE, get};
use loongforge_core::observe::describe_run;
use serde_json::Value;
use std::io::{IsTerminal, Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  loongforge top                        the run that was begun last under runs/
  loongforge top runs/my
  loongforge top 'http://127.0.0.1:41234/?token=...' --every 5
  loongforge top runs/my --once         once, for scripts";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct TopArgs {
    /// The run's folder, or the address that it has printed
    #[arg(value_name = "RUN")]
    run: Option<String>,
    /// Seconds between two looks
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,
    /// Look once
    #[arg(long)]
    once: bool,
}

pub fn top(args: TopArgs) -> anyhow::Result<ExitCode> {
    let target = target(args.run.as_deref())?;
    let mut out = stdout().lock();
    let redraw = out.is_terminal() && !args.once;
    let mut seen = false;
    loop {
        match look(&target) {
            // Home, the text with the rest of each line cleared, and nothing below.
            Ok(text) if redraw => write!(out, "\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n"))?,
            Ok(text) => writeln!(out, "{text}")?,
            // It has ended while we looked.
            Err(ClientError::Silent { .. }) if seen => {
                writeln!(out, "the run has ended")?;
                return Ok(ExitCode::SUCCESS);
            }
            Err(error) => return Err(error.into()),
        }
        out.flush()?;
        seen = true;
        if args.once {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(Duration::from_secs(args.every));
    }
}

fn look(target: &Target) -> Result<String, ClientError> {
    let json =
        |path| -> Result<Value, ClientError> { Ok(serde_json::from_slice(&get(target, path)?).unwrap_or_default()) };
    Ok(describe_run(&json("/status.json")?, &json("/history.json")?))
}

/// The page that is meant; the newest one under `runs/` where nothing is said.
pub(super) fn target(run: Option<&str>) -> anyhow::Result<Target> {
    let newest = || {
        let dirs = std::fs::read_dir("runs").into_iter().flatten().flatten().map(|entry| entry.path());
        let begun = |dir: PathBuf| Some((dir.join(WATCH_FILE).metadata().ok()?.modified().ok()?, dir));
        dirs.filter_map(begun).max().map(|(_, dir)| dir.display().to_string())
    };
    let Some(run) = run.map(str::to_owned).or_else(newest) else {
        let message = "no run goes on under runs/; name its folder, or the address that it has printed";
        return Err(UsageError(message.to_owned()).into());
    };
    Target::find(&run).map_err(|error| UsageError::of(&error).into())
}
