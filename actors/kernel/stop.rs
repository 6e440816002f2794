//! Requests to stop a run normally, or to save: their sources and signals.

use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use tokio::signal::unix::{SignalKind, signal};

/// SIGUSR1: sent by Slurm and others before a job's end.
const SAVE: SignalKind = SignalKind::user_defined1();

/// Phase of this process with respect to signals.
static PHASE: AtomicU8 = AtomicU8::new(0);

/// Who handles the signals of a process with a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The run has not started yet.
    Before,
    /// The run handles them.
    Heeded,
    /// The run has ended.
    After,
}

impl Phase {
    /// Returns whether signals to stop are handled now, not yet, or no longer.
    pub fn now() -> Self {
        match PHASE.load(SeqCst) {
            0 => Self::Before,
            1 => Self::Heeded,
            _ => Self::After,
        }
    }
}

/// Marks this process as handling signals to stop, until dropped.
pub struct Heeding(());

impl Heeding {
    /// Starts handling signals to stop.
    pub fn begin() -> Self {
        PHASE.store(1, SeqCst);
        Self(())
    }
}

impl Drop for Heeding {
    fn drop(&mut self) {
        PHASE.store(2, SeqCst);
    }
}

/// Ignores SIGUSR1 in the process of an engine: launchers send it to all processes, and only the scheduler handles it.
pub(crate) fn leave_to_the_scheduler() {
    // Where it cannot be caught it ends the process, as signals do.
    let _ = signal(SAVE);
}

/// Who may ask a run to finish its step, save and end as preempted. A second request ends it at once.
pub enum StopOn {
    Nothing,
    /// SIGINT and SIGTERM, and SIGUSR1, which only requests a checkpoint. They then no longer end the process by themselves.
    Signals,
    Channel(flume::Receiver<()>),
}

/// What is requested.
pub(super) enum Request {
    Stop,
    Save,
}

impl StopOn {
    /// Waits until the run is asked to stop; forever if nobody can ask.
    pub(crate) async fn stopped(&self) {
        match self {
            StopOn::Channel(requests) if requests.recv_async().await.is_ok() => return,
            StopOn::Signals => {
                if let (Ok(mut interrupt), Ok(mut terminate)) =
                    (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
                {
                    let heeding = Heeding::begin();
                    tokio::select! {
                        _ = interrupt.recv() => {}
                        _ = terminate.recv() => {}
                    }
                    // What was asked for is done: nobody else need do it.
                    std::mem::forget(heeding);
                    return;
                }
            }
            StopOn::Nothing | StopOn::Channel(_) => {}
        }
        std::future::pending().await
    }

    /// Calls `ask` at every request, forever.
    pub(super) async fn watch(self, mut ask: impl FnMut(Request)) {
        match self {
            StopOn::Nothing => {}
            StopOn::Channel(requests) => {
                while requests.recv_async().await.is_ok() {
                    ask(Request::Stop);
                }
            }
            StopOn::Signals => {
                let (Ok(mut interrupt), Ok(mut terminate), Ok(mut save)) =
                    (signal(SignalKind::interrupt()), signal(SignalKind::terminate()), signal(SAVE))
                else {
                    tracing::warn!("SIGINT and SIGTERM cannot be caught: they end the run without a checkpoint");
                    return;
                };
                let _heeding = Heeding::begin();
                loop {
                    let request = tokio::select! {
                        got = interrupt.recv() => got.map(|()| Request::Stop),
                        got = terminate.recv() => got.map(|()| Request::Stop),
                        got = save.recv() => got.map(|()| Request::Save),
                    };
                    let Some(request) = request else { return };
                    ask(request);
                }
            }
        }
    }
}
