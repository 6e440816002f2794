//! Describes what a run did last that does not go on: from its metrics and checkpoints.

use super::super::UsageError;
use loongforge_core::checkpoint::latest;
use loongforge_core::observe::{Board, News, RunInfo, View, describe_run, read_metrics};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Steps whose metrics are shown.
const HISTORY: usize = 1_000_000;

/// The last figures of the run in `dir`, for a terminal. `how`: what is known of its end, in a word.
///
/// # Errors
/// The folder has no metrics.
pub fn describe_ended(dir: &Path, how: &str, view: View) -> anyhow::Result<String> {
    let path = dir.join("metrics.jsonl");
    if !path.exists() {
        let message = format!("{}: no run is active there, and none has left metrics (metrics.jsonl)", dir.display());
        return Err(UsageError(message).into());
    }
    let steps = read_metrics(&path)?;
    let name = dir.file_name().unwrap_or(dir.as_os_str()).to_string_lossy().into_owned();
    let num_steps = steps.last().map_or(0, |step| step.step + 1);
    let info = RunInfo { name, dir: dir.display().to_string(), num_steps, ..RunInfo::default() };
    let mut board = Board::new(info, HISTORY, 1);
    let mut now = 0.0;
    for step in steps {
        now += step.step_ms * 1e6;
        board.take(News::Step(Box::new(step), Vec::new()), now as u64, 0);
    }
    let saved = latest(&dir.join("checkpoints"))?;
    let saved =
        saved.as_deref().and_then(Path::file_name).and_then(|name| name.to_str()?.strip_prefix("step-")?.parse().ok());
    if let Some(step) = saved {
        board.take(News::Checkpoint { step, took: Duration::ZERO }, now as u64, 0);
    }
    board.take(News::Ended(how.to_owned()), now as u64, 0);
    let mut status = board.status();
    // Nothing is known of the time between the steps.
    status["goodput"] = Value::Null;
    Ok(describe_run(&status, &board.history(), view))
}
