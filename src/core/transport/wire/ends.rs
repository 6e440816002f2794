//! The two handles of one end of a wire.

use super::WireError;
use super::packet::PacketKind;
use super::run::run;
use super::shared::Shared;
use super::spec::{In, Out, Raw, Recovery, WireSpec};
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Creates an end of a wire on its first connection, if that exists already. The returned task carries it and must run until it
/// ends.
pub fn wire(
    first: Option<Raw>,
    recovery: Recovery,
    spec: WireSpec,
) -> (WireSender, WireReceiver, impl Future<Output = ()> + Send + 'static) {
    wire_again(first, recovery, spec, Vec::new())
}

/// Creates an end that continues another one. `backlog`: what that one sent after the first `spec.sent` messages.
pub fn wire_again(
    first: Option<Raw>,
    recovery: Recovery,
    spec: WireSpec,
    backlog: Vec<Bytes>,
) -> (WireSender, WireReceiver, impl Future<Output = ()> + Send + 'static) {
    let shared = Arc::new(Shared::new(spec.sent, spec.received));
    backlog.into_iter().for_each(|message| shared.state().outbox.push(PacketKind::Message, message));
    let (queue, to_send) = flume::bounded(spec.queue);
    let (arrived, inbox) = flume::bounded(spec.queue);
    let sender = WireSender { queue, shared: shared.clone() };
    let receiver = WireReceiver { inbox, shared: shared.clone(), confirms: spec.confirms, taken: spec.received };
    (sender, receiver, run(first, recovery, spec, shared, to_send, arrived))
}

/// The sending half. Dropping it sends a farewell.
pub struct WireSender {
    queue: flume::Sender<Out>,
    shared: Arc<Shared>,
}

impl WireSender {
    /// Waits for room. False where there is no wire any more; of a message that is on its way that is learned from the
    /// other half.
    pub async fn send(&self, message: impl Into<Bytes>) -> bool {
        !self.is_closed() && self.queue.send_async(Out::Message(message.into())).await.is_ok()
    }

    /// Works like [`WireSender::send`]; returns when the message has left this process, or may never do so.
    pub async fn send_out(&self, message: impl Into<Bytes>) {
        let (written, out) = oneshot::channel();
        if self.queue.send_async(Out::Told(message.into(), written)).await.is_ok() {
            let mut settled = self.shared.settled.subscribe();
            // A message that the wire had not taken when it ended stays in the queue, and `written` with it.
            let over = async { drop(settled.wait_for(|settled| *settled).await) };
            tokio::select! {
                _ = out => {}
                () = over => {}
            }
        }
    }

    /// Returns false if there is no room, or no wire.
    pub fn try_send(&self, message: impl Into<Bytes>) -> bool {
        !self.is_closed() && self.queue.try_send(Out::Message(message.into())).is_ok()
    }

    /// Sends a message that may be lost.
    pub fn send_loose(&self, message: impl Into<Bytes>) {
        let _ = self.queue.try_send(Out::Loose(message.into()));
    }

    /// Returns whether the other end is gone.
    pub fn is_closed(&self) -> bool {
        self.queue.is_disconnected() || self.shared.state().has_left
    }

    /// Sends a farewell; when this returns, everything has been received, or the other end is gone.
    pub async fn close(self) {
        let mut settled = self.shared.settled.subscribe();
        drop(self);
        // What is not carried any more is gone, and so is who would say so.
        let _ = settled.wait_for(|settled| *settled).await;
    }
}

/// The receiving half.
pub struct WireReceiver {
    inbox: flume::Receiver<In>,
    shared: Arc<Shared>,
    confirms: bool,
    taken: u64,
}

impl WireReceiver {
    /// Returns the next message; `None` after a farewell. The call is cancellation-safe.
    ///
    /// # Errors
    /// The peer is gone, or no peer at all.
    pub async fn recv(&mut self) -> Result<Option<Vec<u8>>, WireError> {
        loop {
            let Ok((number, message)) = self.inbox.recv_async().await else {
                let error = self.shared.state().error.clone();
                return error.map_or(Ok(None), Err);
            };
            if let Some(number) = number {
                // Brought by two connections: the first one ended while the message waited for room.
                if number <= self.taken {
                    continue;
                }
                self.taken = number;
                self.shared.taken(number);
                if !self.confirms {
                    self.shared.confirm(number, message.len());
                }
            }
            return Ok(Some(message));
        }
    }

    /// Returns the number of the last message that was taken.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns a function that confirms messages up to a number: they need never come again.
    pub fn confirm(&self) -> impl Fn(u64) + Send + Sync + use<> {
        let shared = self.shared.clone();
        move |number| shared.confirm(number, 0)
    }
}

impl Drop for WireReceiver {
    fn drop(&mut self) {
        self.shared.state().is_deaf = true;
        self.shared.wake.notify_one();
    }
}
