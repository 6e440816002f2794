//! Forwards signals to stop or to save to a child process.

use super::child::PARENT;
use crate::kernel::Hangups;
use rustix::process::{Pid, Signal, kill_process};
use std::io;
use std::process::Stdio;
use tokio::process::{Child, Command};
use tokio::signal::unix::{self, SignalKind, signal};

/// The signals of a process that it does not heed itself.
pub(super) struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
    save: unix::Signal,
    hangups: Hangups,
}

impl Signals {
    /// Listens to SIGINT, SIGTERM, SIGHUP and SIGUSR1 from now on.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new() -> io::Result<Self> {
        let [interrupt, terminate, save] =
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::user_defined1()].map(signal);
        Ok(Self { interrupt: interrupt?, terminate: terminate?, save: save?, hangups: Hangups::new()? })
    }

    /// Returns the next signal. Dropping the future loses none.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            Some(()) = self.interrupt.recv() => Signal::INT,
            Some(()) = self.terminate.recv() => Signal::TERM,
            Some(()) = self.save.recv() => Signal::USR1,
            () = self.hangups.next() => Signal::HUP,
        }
    }
}

/// Starts a child that gets its signals only through [`hand_on`], and dies with this process if it calls [`super::bind_to_parent`].
pub(super) fn spawn(mut command: Command) -> io::Result<Child> {
    command.env(PARENT, std::process::id().to_string());
    // Its own group: what asks it to stop comes from here, once.
    command.stdin(Stdio::null()).process_group(0).kill_on_drop(true).spawn()
}

/// Forwards a signal to a child, which may have ended.
pub(super) fn hand_on(asked: Signal, child: &Child) {
    if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(pid as i32)) {
        let _ = kill_process(pid, asked);
    }
}
