//! `loongforge top`: shows a run's figures in the terminal, with periodic refresh.

mod ended;
mod keys;

use self::ended::describe_ended;
pub(super) use self::ended::ended;
use self::keys::Keys;
use super::UsageError;
use super::exit::OutputError;
use super::run::is_held;
use clap::Args;
use loongforge_actors::watch::{ClientError, Target, WATCH_FILE, get};
use loongforge_core::config::Address;
use loongforge_core::observe::{View, describe_run, has_color};
use rustix::termios::tcgetwinsize;
use serde_json::Value;
use std::io::{IsTerminal, Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "\
Keys: q quits, h or ? shows the keys, any other key refreshes.

Examples:
  loongforge top                        the newest run under runs/
  loongforge top runs/my                of a finished run, its last state
  loongforge top 'http://127.0.0.1:41234/?token=...' --every 5
  loongforge top runs/my --once         once, for scripts";

const KEYS: &str = "\nq  quit\nh  show or hide the keys; ? as well\nany other key refreshes\n";
/// Ctrl-C and Ctrl-D.
const CONTROL: [u8; 2] = [3, 4];

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct TopArgs {
    /// Folder of the run, or the address that the run printed
    #[arg(value_name = "RUN")]
    run: Option<String>,
    /// Seconds between refreshes [default: 1 in a terminal; elsewhere the state is printed once]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: Option<u64>,
    /// Print once and exit
    #[arg(long, conflicts_with = "every")]
    once: bool,
}

impl TopArgs {
    /// Returns the time between two prints; `None`: there is one print. Whoever reads a pipe waits for its end.
    fn pause(&self, is_terminal: bool) -> Option<Duration> {
        let every = self.every.or(is_terminal.then_some(1)).filter(|_| !self.once);
        every.map(Duration::from_secs)
    }
}

/// Runs `loongforge top`: shows the state of a run, again and again in a terminal or with `--every`, once otherwise.
pub fn top(args: TopArgs) -> anyhow::Result<ExitCode> {
    let run = named(args.run.as_deref())?;
    let dir = Some(Path::new(&run)).filter(|dir| dir.is_dir());
    let mut out = stdout().lock();
    let pause = args.pause(out.is_terminal());
    let redraw = out.is_terminal() && pause.is_some();
    let target = match (Target::find(&run), dir) {
        (Ok(target), _) => target,
        (Err(error @ (ClientError::Ended { .. } | ClientError::NoRun { .. })), Some(dir)) => {
            // With `watch.listen: null` a run goes on without anybody that could be asked.
            let is_active = matches!(error, ClientError::NoRun { .. }) && is_held(dir);
            let how = if is_active { "running without a page (watch.listen: null)" } else { "ended" };
            write!(out, "{}", describe_ended(dir, how, view())?).map_err(OutputError)?;
            return Ok(ExitCode::SUCCESS);
        }
        (Err(error), _) => return Err(UsageError::of(error).into()),
    };
    let keys = if redraw { Keys::open() } else { None };
    let (mut seen, mut shows_keys) = (false, false);
    loop {
        let text = match (look(&target), dir) {
            (Ok(text), _) => text,
            (Err(ClientError::Silent { .. }), _) if seen => {
                writeln!(out, "the run has ended").map_err(OutputError)?;
                return Ok(ExitCode::SUCCESS);
            }
            // It was killed and could not say that it ended.
            (Err(ClientError::Silent { .. }), Some(dir)) => {
                write!(out, "{}", describe_ended(dir, "not running: no answer", view())?).map_err(OutputError)?;
                return Ok(ExitCode::SUCCESS);
            }
            (Err(error), _) => return Err(error.into()),
        };
        if redraw {
            let help = if shows_keys { KEYS } else { "" };
            // Home, the text with the rest of each line cleared, and nothing below.
            write!(out, "\x1b[H{}\x1b[J", (text + &page_line(&target) + help).replace('\n', "\x1b[K\n"))
                .map_err(OutputError)?;
        } else {
            writeln!(out, "{text}").map_err(OutputError)?;
        }
        out.flush().map_err(OutputError)?;
        seen = true;
        let Some(pause) = pause else { return Ok(ExitCode::SUCCESS) };
        match &keys {
            None => std::thread::sleep(pause),
            Some(keys) => match keys.wait(pause)? {
                Some(b'q' | b'Q') => return Ok(ExitCode::SUCCESS),
                Some(key) if CONTROL.contains(&key) => return Ok(ExitCode::SUCCESS),
                Some(b'h' | b'?') => shows_keys = !shows_keys,
                _ => {}
            },
        }
    }
}

/// Returns a line with the address of the page for a browser, for the person at this terminal.
fn page_line(target: &Target) -> String {
    match &target.address {
        Address::Tcp { .. } => format!("\npage  http://{}/?token={}\n", target.address, target.token),
        Address::Unix(_) => String::new(),
    }
}

/// Returns the terminal as it is now: its window may have changed.
fn view() -> View {
    let out = stdout();
    let width = tcgetwinsize(&out).map_or(0, |size| usize::from(size.ws_col));
    View { width, color: has_color(&out) }
}

fn look(target: &Target) -> Result<String, ClientError> {
    let json =
        |path| -> Result<Value, ClientError> { Ok(serde_json::from_slice(&get(target, path)?).unwrap_or_default()) };
    Ok(describe_run(&json("/status.json")?, &json("/history.json")?, view()))
}

/// Returns the run that is meant; the one begun last under `runs/` where nothing is said.
fn named(run: Option<&str>) -> anyhow::Result<String> {
    let newest = || {
        let dirs = std::fs::read_dir("runs").into_iter().flatten().flatten().map(|entry| entry.path());
        let begun = |dir: PathBuf| Some((dir.join(WATCH_FILE).metadata().ok()?.modified().ok()?, dir));
        dirs.filter_map(begun).max().map(|(_, dir)| dir.display().to_string())
    };
    run.map(str::to_owned).or_else(newest).ok_or_else(|| {
        let message = "no run under runs/; name its folder, or the address that it printed";
        UsageError(message.to_owned()).into()
    })
}

/// Returns the page that is meant.
pub(super) fn target(run: Option<&str>) -> anyhow::Result<Target> {
    Target::find(&named(run)?).map_err(|error| UsageError::of(error).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_printed_once_where_there_is_no_terminal_unless_asked_for_more() {
        let pause = |every, once, is_terminal| TopArgs { run: None, every, once }.pause(is_terminal);
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!([pause(None, false, true), pause(Some(5), false, true)], [seconds(1), seconds(5)]);
        assert_eq!([pause(None, false, false), pause(Some(5), false, false)], [None, seconds(5)]);
        assert_eq!([pause(None, true, true), pause(None, true, false)], [None, None]);
    }
}
