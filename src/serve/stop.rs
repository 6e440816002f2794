//! The signals at which a server ends.

use loongforge_actors::StopSignals;

/// Waits for SIGINT (Ctrl-C), SIGTERM, with which containers and supervisors end a server, or SIGHUP of a terminal that is closed; for
/// ever where they cannot be caught.
pub async fn asked_to_stop() {
    match StopSignals::new() {
        Ok(mut signals) => signals.next().await,
        Err(_) => std::future::pending().await,
    }
}
