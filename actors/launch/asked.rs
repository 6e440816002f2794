//! Signals that ask the process of one actor to stop: it tells the scheduler, and goes on until the run lets it go.

use super::join::{Up, say};
use crate::kernel::{StopSignals, Stops};
use loongforge_core::message::{ActorId, Event};
use loongforge_core::transport::WireSender;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;

/// True when this process was asked to stop.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Returns whether a signal has asked this process to stop while it was an actor of a run.
pub fn is_asked_to_stop() -> bool {
    ASKED.load(SeqCst)
}

/// Tells the scheduler when the process of `me` is asked to stop, and returns when it is asked again. Without signals it never returns.
pub(super) async fn asked_twice(me: ActorId, signals: Option<StopSignals>, scheduler: &WireSender) {
    let Some(mut signals) = signals else { return std::future::pending().await };
    let mut stops = Stops::default();
    stops.on(signals.which().await, Instant::now());
    ASKED.store(true, SeqCst);
    tracing::info!("{me} is asked to stop, and tells the scheduler; a second request ends it at once");
    // A signal that repeats the first one, as of batch systems and of terminals that are closed, is none, as for the scheduler.
    let again = async { while stops.on(signals.which().await, Instant::now()).is_none() {} };
    tokio::pin!(again);
    tokio::select! {
        () = &mut again => return,
        // A scheduler that is gone is learned of elsewhere.
        _ = say(scheduler, &Up::Event(Event::Leaving)) => {}
    }
    again.await;
}
