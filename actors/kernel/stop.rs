//! What asks a run to stop in order.

use tokio::signal::unix::{SignalKind, signal};

/// Who may ask a run to finish its step, save and end as preempted. A second time: to end at once.
pub enum StopOn {
    Nothing,
    /// SIGINT and SIGTERM. They then no longer end the process by themselves.
    Signals,
    Channel(flume::Receiver<()>),
}

impl StopOn {
    /// Calls `stop` at every request, for ever.
    pub(super) async fn watch(self, mut stop: impl FnMut()) {
        match self {
            StopOn::Nothing => {}
            StopOn::Channel(requests) => {
                while requests.recv_async().await.is_ok() {
                    stop();
                }
            }
            StopOn::Signals => {
                let (Ok(mut interrupt), Ok(mut terminate)) =
                    (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
                else {
                    tracing::warn!("SIGINT and SIGTERM cannot be caught: they end the run without a checkpoint");
                    return;
                };
                loop {
                    let got = tokio::select! { got = interrupt.recv() => got, got = terminate.recv() => got };
                    if got.is_none() {
                        return;
                    }
                    stop();
                }
            }
        }
    }
}
