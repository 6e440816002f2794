//! A whole run as a child, for a process that runs several, one after another.

use super::RunError;
use super::child::PARENT;
use rustix::process::{Pid, Signal, kill_process};
use std::io;
use std::process::{Command, ExitStatus, Stdio};
use tokio::signal::unix::{SignalKind, signal};

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
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut save = signal(SignalKind::user_defined1())?;
    let mut command = tokio::process::Command::from(command);
    command.env(PARENT, std::process::id().to_string());
    // Its own group: what asks it to stop comes from here, once.
    let mut child = command.stdin(Stdio::null()).process_group(0).kill_on_drop(true).spawn()?;
    loop {
        let asked = tokio::select! {
            status = child.wait() => return status,
            Some(()) = interrupt.recv() => Signal::INT,
            Some(()) = terminate.recv() => Signal::TERM,
            Some(()) = save.recv() => Signal::USR1,
        };
        if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(pid as i32)) {
            let _ = kill_process(pid, asked);
        }
    }
}
