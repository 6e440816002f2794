//! When a server ends.

use loongforge_actors::Hangups;
use tokio::signal::unix::{SignalKind, signal};

/// Waits for SIGINT (Ctrl-C), SIGTERM, with which containers and supervisors end a server, or SIGHUP of a terminal that is closed; for
/// ever where they cannot be caught.
pub async fn asked_to_stop() {
    let (Ok(mut interrupt), Ok(mut terminate), Ok(mut hangups)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()), Hangups::new())
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        () = hangups.next() => {}
    }
}
