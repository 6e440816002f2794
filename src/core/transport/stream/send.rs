//! The sending end of an edge to an engine on another host.

use super::{StreamError, StreamSpec, contents};
use crate::message::ActorId;
use crate::transport::credit::Credit;
use crate::transport::credit_guard::CreditGuard;
use crate::transport::{
    Edge, Mail, MailSender, Parcel, Raw, Recovery, Refusal, Refused, WireReceiver, WireSender, wire,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

type InFlight = Mutex<BTreeMap<u64, CreditGuard>>;

pub struct StreamEdge {
    credit: Credit,
    wire: WireSender,
    in_flight: Arc<InFlight>,
    next: u64,
}

impl StreamEdge {
    /// Creates an edge to `to`; the mailbox of `mail` is told of returned credit and of the end of `to`. Must be called inside a
    /// runtime. Also returns the task that carries its parcels, to be run until it ends, which is once the edge is dropped and
    /// everything is received.
    pub fn new(
        first: Option<Raw>,
        recovery: Recovery,
        spec: StreamSpec,
        to: ActorId,
        mail: MailSender,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (wire, receiver, carrier) = wire(first, recovery, spec.wire(false));
        let in_flight: Arc<InFlight> = Arc::default();
        tokio::spawn(take_back(receiver, to, Arc::downgrade(&in_flight), mail.clone()));
        (Self { credit: Credit::new(spec.credit, mail), wire, in_flight, next: 0 }, carrier)
    }
}

impl Edge for StreamEdge {
    fn try_send(&mut self, parcel: Parcel) -> Result<(), Refused> {
        let bytes = parcel.num_bytes();
        let refused = |parcel, why| Err(Refused { parcel, why });
        if self.wire.is_closed() {
            return refused(parcel, Refusal::Closed);
        }
        if bytes > self.credit.capacity() {
            let why = Refusal::TooLarge { bytes, credit: self.credit.capacity() };
            return refused(parcel, why);
        }
        let Some(guard) = self.credit.take(bytes) else { return refused(parcel, Refusal::NoCredit) };
        let Ok(message) = contents::write(&parcel) else {
            let num_tensors = parcel.tensors.len();
            return refused(parcel, Refusal::Unfit { num_tensors });
        };
        lock(&self.in_flight).insert(self.next, guard);
        // As long as the parcels that may be in flight: it is never full.
        if !self.wire.try_send(message) {
            lock(&self.in_flight).remove(&self.next);
            return refused(parcel, Refusal::Closed);
        }
        self.next += 1;
        Ok(())
    }

    fn load(&mut self) -> (usize, usize) {
        (self.credit.in_flight(), self.credit.capacity())
    }
}

fn lock(shared: &InFlight) -> std::sync::MutexGuard<'_, BTreeMap<u64, CreditGuard>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes credit back until the wire ends, or the edge is dropped.
async fn take_back(mut wire: WireReceiver, to: ActorId, edge: Weak<InFlight>, mail: MailSender) {
    let error = loop {
        let message = wire.recv().await;
        // Whose edge is dropped does not miss the peer.
        let Some(in_flight) = edge.upgrade() else { return };
        match message {
            Ok(Some(message)) => {
                let numbers = message
                    .chunks_exact(8)
                    .map(|number| u64::from_le_bytes(number.try_into().expect("they are eight")));
                let unknown = numbers.into_iter().find(|number| lock(&in_flight).remove(number).is_none());
                if let Some(number) = unknown {
                    break StreamError::NotInFlight { number };
                }
            }
            // It has left in order: what is sent to it now is refused, and that is all.
            Ok(None) => return lock(&in_flight).clear(),
            Err(error) => break error.into(),
        }
    };
    // What was in flight is nobody's any more.
    if let Some(in_flight) = edge.upgrade() {
        lock(&in_flight).clear();
        drop(mail.send(Mail::Gone { peer: to, reason: error.to_string() }));
    }
}
