//! The exit code, which tells the launcher that started a process how it ended.

use super::UsageError;
use loongforge_actors::RunError;

/// Bad configuration or usage: never retry.
pub const USAGE: u8 = 2;
/// Stopped on request after a checkpoint: resume.
pub const PREEMPTED: u8 = 3;
/// A process that the run cannot go on without died, more often than the run may begin again: resume elsewhere.
pub const LOST: u8 = 4;
/// Numbers are not finite: the last good checkpoint is there, and beginning again comes to the same.
pub const NUMBERS: u8 = 5;
/// The run's processes did not come together: try again.
pub const TRANSIENT: u8 = 75;
/// The run failed; the first cause was printed.
pub const FAILED: u8 = 1;

/// Returns what an error that ends the program means for who started it.
pub fn of(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<RunError>() {
        _ if error.is::<UsageError>() => USAGE,
        Some(RunError::Failed(failure)) if failure.is_loss => LOST,
        Some(RunError::Failed(failure)) if failure.is_numeric => NUMBERS,
        Some(RunError::Join(_)) => TRANSIENT,
        _ => FAILED,
    }
}
