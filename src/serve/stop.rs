//! When a server ends.

use tokio::signal::unix::{SignalKind, signal};

/// Waits for SIGINT (Ctrl-C) or SIGTERM, with which containers and supervisors end a server; for ever where neither can be caught.
pub async fn asked_to_stop() {
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
