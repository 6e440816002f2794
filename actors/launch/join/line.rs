//! The wire between an actor's process and the scheduler, and its messages.

use loongforge_core::message::{decode, encode};
use loongforge_core::transport::{MAX_FRAME, Raw, Recovery, WireError, WireReceiver, WireSender, WireSpec, wire};
use serde::{Serialize, de::DeserializeOwned};
use std::time::Duration;

/// Messages that may wait.
const QUEUE: usize = 64;
/// The time that an actor waits for its scheduler, in leases.
const PATIENCE: u32 = 12;

/// One end of it.
pub struct Line {
    pub number: u128,
    pub lease: Duration,
}

/// Creates an actor's end; the returned task carries it and must run.
pub fn line(
    first: Raw,
    recovery: Recovery,
    line: &Line,
) -> (WireSender, WireReceiver, impl Future<Output = ()> + Send + 'static) {
    let patience = PATIENCE * line.lease;
    let mut spec = spec(line.number, false, line.lease, patience, patience);
    if matches!(recovery, Recovery::None) {
        spec.quiet = patience;
    }
    wire(Some(first), recovery, spec)
}

/// Returns the spec of an end: a connection is broken when half a lease goes by in silence.
pub(super) fn spec(
    number: u128,
    accepts: bool,
    lease: Duration,
    patience: Duration,
    patience_ended: Duration,
) -> WireSpec {
    WireSpec {
        number: Some(number),
        accepts,
        sent: 0,
        received: 0,
        life: 1,
        max_len: MAX_FRAME,
        queue: QUEUE,
        confirms: false,
        quiet: lease / 2,
        patience,
        patience_ended,
        patience_first: patience_ended,
    }
}

/// Sends a message; returns false if nobody is there, or the message is too long.
pub async fn say(wire: &WireSender, message: &impl Serialize) -> bool {
    match encode(message) {
        Ok(bytes) if bytes.len() <= MAX_FRAME => wire.send(bytes).await,
        Ok(bytes) => {
            tracing::error!("a message of {} bytes exceeds the limit of {MAX_FRAME}", bytes.len());
            false
        }
        Err(error) => {
            tracing::error!("{error}");
            false
        }
    }
}

/// Works like [`say`]; the message has left the process then.
pub async fn say_out(wire: &WireSender, message: &impl Serialize) {
    if let Ok(bytes) = encode(message) {
        wire.send_out(bytes).await;
    }
}

/// Sends a message that may be lost.
pub fn say_loose(wire: &WireSender, message: &impl Serialize) {
    if let Ok(bytes) = encode(message) {
        wire.send_loose(bytes);
    }
}

/// Returns the next message; `None` after a normal end.
///
/// # Errors
/// The peer is gone, or said what is none.
pub async fn hear<T: DeserializeOwned>(wire: &mut WireReceiver) -> Result<Option<T>, WireError> {
    match wire.recv().await? {
        Some(bytes) => Ok(Some(decode(&bytes)?)),
        None => Ok(None),
    }
}
