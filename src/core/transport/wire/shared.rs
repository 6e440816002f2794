//! State shared by the tasks and handles of one end of a wire.

use super::WireError;
use super::packet::{Packet, PacketKind};
use super::sequence::Outbox;
use bytes::Bytes;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};

/// Messages received after which they are acknowledged at once; and bytes.
const MAX_SILENT: u64 = 16;
const MAX_SILENT_BYTES: usize = 1 << 20;

pub struct Shared {
    state: Mutex<State>,
    /// There may be something to write.
    pub wake: Notify,
    /// Everything that was sent is acknowledged, the farewell too.
    pub settled: watch::Sender<bool>,
}

pub struct State {
    pub outbox: Outbox,
    /// The last message that was handed to the receiver.
    pub received: u64,
    /// The last one that may be acknowledged.
    pub confirmed: u64,
    /// The last one that was acknowledged.
    acknowledged: u64,
    silent_bytes: usize,
    /// The last life of the other end that was met.
    pub life: u64,
    /// The sender is gone: the farewell is in the outbox.
    pub is_closed: bool,
    /// The other end has said farewell.
    pub has_left: bool,
    /// The receiver is gone.
    pub is_deaf: bool,
    /// The reason why there is no wire any more.
    pub error: Option<WireError>,
}

impl Shared {
    /// Makes the state of an end which so many messages were sent from, and received at, before.
    pub fn new(sent: u64, received: u64) -> Self {
        let state = State {
            outbox: Outbox::new(sent),
            received,
            confirmed: received,
            acknowledged: received,
            silent_bytes: 0,
            life: 0,
            is_closed: false,
            has_left: false,
            is_deaf: false,
            error: None,
        };
        Self { state: Mutex::new(state), wake: Notify::new(), settled: watch::Sender::new(false) }
    }

    /// Locks and returns the state, also after a panic of another thread.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the receiver has taken a message. The connection that brought it may have ended before it knew that.
    pub fn taken(&self, number: u64) {
        let mut state = self.state();
        state.received = state.received.max(number);
    }

    /// Records that the receiver has handled all messages up to this one.
    pub fn confirm(&self, number: u64, bytes: usize) {
        let mut state = self.state();
        state.confirmed = state.confirmed.max(number);
        state.silent_bytes += bytes;
        if state.confirmed >= state.acknowledged + MAX_SILENT || state.silent_bytes >= MAX_SILENT_BYTES {
            self.wake.notify_one();
        }
    }

    /// # Errors
    /// That was never sent.
    pub fn acknowledged(&self, number: u64) -> Result<(), WireError> {
        let mut state = self.state();
        let before = state.outbox.len();
        state.outbox.acknowledged(number)?;
        if state.outbox.len() < before {
            // There is room again, or nothing left to wait for.
            self.wake.notify_one();
        }
        self.settled.send_if_modified(|settled| {
            let now = state.is_closed && state.outbox.len() == 0;
            std::mem::replace(settled, now) != now
        });
        Ok(())
    }

    /// Records why the wire has failed, unless it already has: the first error counts.
    pub fn fail(&self, error: WireError) {
        self.state().error.get_or_insert(error);
    }
}

impl State {
    /// Returns the packet that is to be written next, and the number up to which it acknowledges.
    pub fn next(&mut self) -> Option<(Packet, u64)> {
        let packet = self.outbox.next().or_else(|| self.is_due().then(|| pulse(self.outbox.last())))?;
        Some((packet, self.acknowledge()))
    }

    /// Returns a pulse if something is to be acknowledged, by either end, or `is_quiet`.
    pub fn pulse(&mut self, is_quiet: bool) -> Option<(Packet, u64)> {
        let wanted = is_quiet || self.confirmed > self.acknowledged || self.outbox.len() > 0;
        wanted.then(|| (pulse(self.outbox.last()), self.acknowledge()))
    }

    /// Returns the number of the last message to acknowledge, and counts it as acknowledged.
    pub fn acknowledge(&mut self) -> u64 {
        self.silent_bytes = 0;
        self.acknowledged = self.confirmed;
        self.confirmed
    }

    fn is_due(&self) -> bool {
        self.has_left && self.acknowledged < self.confirmed
            || self.confirmed >= self.acknowledged + MAX_SILENT
            || self.silent_bytes >= MAX_SILENT_BYTES
    }

    /// Returns whether nothing is left to send or receive.
    pub fn is_over(&self) -> bool {
        let said = self.is_closed && self.outbox.len() == 0;
        said && (self.has_left || self.is_deaf)
    }
}

/// `last`: number of the last message before it, by which one that is missing is noticed.
fn pulse(last: u64) -> Packet {
    Packet::new(PacketKind::Pulse, last, Bytes::new())
}
