//! Runs a whole run as a child process, for a process that runs several in sequence.

use super::RunError;
use super::signals::{Signals, hand_on, spawn};
use std::io;
use std::process::{Command, ExitStatus};

/// Runs one process to its end. It receives what asks this process to stop or to save, and dies with it where it calls
/// [`super::bind_to_parent`].
///
/// # Errors
/// It cannot be started.
pub fn run_to_end(command: Command) -> Result<ExitStatus, RunError> {
    let failed = |source| RunError::Start { what: "a run".into(), source };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(wait(command)).map_err(failed)
}

async fn wait(command: Command) -> io::Result<ExitStatus> {
    let mut signals = Signals::new()?;
    let mut child = spawn(command.into())?;
    loop {
        tokio::select! {
            status = child.wait() => return status,
            asked = signals.next() => hand_on(asked, &child),
        }
    }
}
