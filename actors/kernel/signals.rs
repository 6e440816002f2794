//! Signals that ask a program to stop, among them SIGHUP, which the system sends where the terminal or connection is closed that the
//! program was started from.

use rustix::process::Signal;
use std::{fs, io};
use tokio::signal::unix::{self, SignalKind, signal};

/// The process's state as the kernel shows it, with the signals that it ignores.
const STATUS: &str = "/proc/self/status";

/// Hears of SIGHUP, unless this process was started with that ignored, as `nohup` does: then it stays ignored.
pub(crate) struct Hangups(Option<unix::Signal>);

impl Hangups {
    /// Listens to SIGHUP from now on.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new() -> io::Result<Self> {
        // To listen ends the ignoring, so it is looked at before; where that cannot be seen, the system's default stays.
        let is_ignored = fs::read_to_string(STATUS).map_or(true, |status| ignores_hangups(&status));
        if is_ignored { Ok(Self(None)) } else { signal(SignalKind::hangup()).map(|listening| Self(Some(listening))) }
    }

    /// Waits for the next one; forever where they are ignored. Dropping the future loses none.
    pub async fn next(&mut self) {
        if let Some(listening) = &mut self.0
            && listening.recv().await.is_some()
        {
            return;
        }
        std::future::pending().await
    }
}

/// A signal that asks a run to stop.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopSignal {
    Hangup,
    Interrupt,
    Terminate,
}

/// SIGINT, SIGTERM and SIGHUP, for a program that does the same on each of them.
pub struct StopSignals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
    hangups: Hangups,
}

impl StopSignals {
    /// Listens from now on.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new() -> io::Result<Self> {
        let [interrupt, terminate] = [SignalKind::interrupt(), SignalKind::terminate()].map(signal);
        Ok(Self { interrupt: interrupt?, terminate: terminate?, hangups: Hangups::new()? })
    }

    /// Waits for the next one. Dropping the future loses none.
    pub async fn next(&mut self) {
        self.which().await;
    }

    /// Works like [`Self::next`]; returns which one it is. If several are there, Ctrl-C is the first: a parent that gets it, too, hands
    /// it on as SIGTERM.
    pub(crate) async fn which(&mut self) -> StopSignal {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => StopSignal::Interrupt,
            _ = self.terminate.recv() => StopSignal::Terminate,
            () = self.hangups.next() => StopSignal::Hangup,
        }
    }
}

/// Returns whether a process of this status ignores SIGHUP.
fn ignores_hangups(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(u64::MAX);
    // Signal 1 is the lowest bit.
    (mask >> (Signal::HUP.as_raw() - 1)) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_signals_that_are_there_ctrl_c_comes_first() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut signals = StopSignals::new().unwrap();
            for signal in [Signal::TERM, Signal::INT] {
                rustix::process::kill_process(rustix::process::getpid(), signal).unwrap();
            }
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            assert!(signals.which().await == StopSignal::Interrupt && signals.which().await == StopSignal::Terminate);
        });
    }

    #[test]
    fn ignored_signals_are_read_from_the_status_of_a_process() {
        let of = |mask: &str| format!("SigBlk:\t0000000000000001\nSigIgn:\t{mask}\nSigCgt:\t0000000000000001\n");
        assert!(ignores_hangups(&of("0000000000001001")));
        assert!(!ignores_hangups(&of("0000000000001000")));
        // What cannot be read leaves the signal as it is.
        assert!(ignores_hangups("") && ignores_hangups(&of("-")));
    }
}
