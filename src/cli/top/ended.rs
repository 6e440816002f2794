//! The last state of a finished run, from its metrics, evaluations and checkpoints.

use super::super::UsageError;
use loongforge_core::checkpoint::latest;
use loongforge_core::files::steps_of;
use loongforge_core::observe::{Board, PastRun, View, describe_run};
use std::path::Path;

/// Returns the last figures of the run in `dir`, for a terminal. `how`: what is known about its end, in a word.
///
/// # Errors
/// The folder has no metrics.
pub fn describe_ended(dir: &Path, how: &str, view: View) -> anyhow::Result<String> {
    let board = ended(dir, how)?;
    Ok(describe_run(&board.status(), &board.history(), view))
}

/// Reads the state of the run in `dir` from its folder.
///
/// # Errors
/// The folder has no metrics.
pub fn ended(dir: &Path, how: &str) -> anyhow::Result<Board> {
    if !dir.join("metrics.jsonl").exists() {
        let message =
            format!("{}: no run is active there, and there are no metrics of one (metrics.jsonl)", dir.display());
        return Err(UsageError(message).into());
    }
    let run = PastRun::read(dir)?;
    let saved = latest(&dir.join("checkpoints"))?;
    let saved = saved.as_deref().and_then(Path::file_name).and_then(|name| steps_of(name.to_str()?));
    Ok(run.board(how, saved))
}
