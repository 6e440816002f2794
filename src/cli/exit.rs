//! The exit code, which tells the launcher that started a process how it ended.

use super::UsageError;
use loongforge_actors::RunError;
use loongforge_core::checkpoint::StoredError;
use loongforge_core::store::StoreError;
use rustix::process::Signal;
use std::error::Error;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// Bad configuration or usage: never retry.
pub const USAGE: u8 = 2;
/// Stopped on request after a checkpoint: resume.
pub const PREEMPTED: u8 = 3;
/// A process that the run cannot go on without died, more often than the run may begin again: resume elsewhere.
pub const LOST: u8 = 4;
/// Numbers are not finite: the last good checkpoint is there, and beginning again comes to the same.
pub const NUMBERS: u8 = 5;
/// The run's processes did not come together, or an object store did not answer: try again.
pub const TRANSIENT: u8 = 75;
/// The run failed; the first cause was printed.
pub const FAILED: u8 = 1;
/// Whoever reads what is printed has read enough, as `head` has: a shell's code for it, and nothing to be said.
pub const READER_GONE: u8 = 141;

/// Standard output does not take what is printed.
#[derive(Debug, thiserror::Error)]
#[error("standard output: {0}")]
pub struct OutputError(pub std::io::Error);

/// Returns the exit code of an error that ends the program.
pub fn of(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<RunError>() {
        _ if error.is::<UsageError>() => USAGE,
        _ if error.downcast_ref::<OutputError>().is_some_and(|it| it.0.kind() == ErrorKind::BrokenPipe) => READER_GONE,
        Some(RunError::Failed(failure)) if failure.is_loss() => LOST,
        Some(RunError::Failed(failure)) if failure.is_numeric() => NUMBERS,
        Some(RunError::Join(error)) if error.is_permanent() => USAGE,
        Some(RunError::Join(_)) => TRANSIENT,
        _ if error.chain().any(is_outage) => TRANSIENT,
        _ => FAILED,
    }
}

/// Returns the code of a process that ran this command for the program.
pub fn of_status(status: ExitStatus) -> u8 {
    let of_signal = if is_stopped(status) { PREEMPTED } else { LOST };
    status.code().map_or(of_signal, |code| code as u8)
}

/// Returns whether a signal that asks a process to stop has killed it: it was not under way, and has not said that it stops.
pub fn is_stopped(status: ExitStatus) -> bool {
    [Signal::INT, Signal::TERM, Signal::HUP].iter().any(|asked| status.signal() == Some(asked.as_raw()))
}

/// Returns whether an object store did not answer.
fn is_outage(cause: &(dyn Error + 'static)) -> bool {
    let stored = match cause.downcast_ref::<StoredError>() {
        Some(StoredError::Store(error)) => Some(error),
        _ => None,
    };
    stored.or(cause.downcast_ref::<StoreError>()).is_some_and(|error| error.is_outage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::uploads::Unfit;

    #[test]
    fn a_store_that_does_not_answer_may_answer_later() {
        let error = |is_outage| StoredError::from(StoreError { is_outage, ..StoreError::new("s3://a/b", "no answer") });
        let resumed = |is_outage| anyhow::anyhow!(error(is_outage)).context("cannot resume");
        assert_eq!((of(&resumed(true)), of(&resumed(false))), (TRANSIENT, FAILED));
        assert_eq!(of(&Unfit::from(error(true)).into()), TRANSIENT);
        assert_eq!(of(&UsageError("a".to_owned()).into()), USAGE);
    }

    #[test]
    fn a_process_that_a_request_to_stop_has_killed_was_stopped() {
        let killed = |signal: Signal| of_status(ExitStatus::from_raw(signal.as_raw()));
        assert_eq!([Signal::TERM, Signal::INT, Signal::HUP].map(killed), [PREEMPTED; 3]);
        assert_eq!(killed(Signal::KILL), LOST);
        let is_stopped = |raw| is_stopped(ExitStatus::from_raw(raw));
        assert!(is_stopped(Signal::TERM.as_raw()) && !is_stopped(Signal::KILL.as_raw()));
        assert!(!is_stopped(i32::from(PREEMPTED) << 8));
        assert_eq!(of_status(ExitStatus::from_raw(i32::from(USAGE) << 8)), USAGE);
    }
}
