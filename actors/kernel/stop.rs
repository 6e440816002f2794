//! Describes what asks a run to stop in order, or to save.

use tokio::signal::unix::{SignalKind, signal};

/// SIGUSR1: what Slurm and others send ahead of the end.
const SAVE: SignalKind = SignalKind::user_defined1();

/// In the process of an engine: launchers send the signal to all, and it is the scheduler's alone.
pub(crate) fn leave_to_the_scheduler() {
    // Where it cannot be caught it ends the process, as signals do.
    let _ = signal(SAVE);
}

/// Says who may ask a run to finish its step, save and end as preempted. A second time: to end at once.
pub enum StopOn {
    Nothing,
    /// SIGINT and SIGTERM, and SIGUSR1, which asks for a checkpoint and nothing else. They then no longer end the process by
    /// themselves.
    Signals,
    Channel(flume::Receiver<()>),
}

/// Says what is asked for.
pub(super) enum Request {
    Stop,
    Save,
}

impl StopOn {
    /// Waits until the run is asked to stop; for ever where nobody can.
    pub(crate) async fn stopped(&self) {
        match self {
            StopOn::Channel(requests) if requests.recv_async().await.is_ok() => return,
            StopOn::Signals => {
                if let (Ok(mut interrupt), Ok(mut terminate)) =
                    (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
                {
                    tokio::select! {
                        _ = interrupt.recv() => {}
                        _ = terminate.recv() => {}
                    }
                    return;
                }
            }
            StopOn::Nothing | StopOn::Channel(_) => {}
        }
        std::future::pending().await
    }

    /// Calls `ask` at every request, for ever.
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
