//! The receiving end of an edge from an engine on another host.

use super::{StreamError, StreamSpec, contents};
use crate::message::ActorId;
use crate::transport::credit::Credit;
use crate::transport::credit_guard::CreditGuard;
use crate::transport::limits::MAX_PARCELS;
use crate::transport::{Mail, MailSender, Raw, Recovery, Returned, WireReceiver, WireSender, wire};
use std::sync::Arc;

/// Receives the parcels of `from` until its end, of which the mailbox is told unless it was in order; or until nobody
/// holds the other end of `here`, which is this engine's own orderly end. `returned`: where `from` comes back to.
pub async fn receive(
    first: Raw,
    returned: flume::Receiver<Returned>,
    spec: StreamSpec,
    from: ActorId,
    mail: MailSender,
    here: flume::Receiver<()>,
) {
    let (sender, receiver, carrier) = wire(Some(first), Recovery::Accept(returned), spec.wire(true));
    let take = async move {
        if let Err(error) = take_all(sender, receiver, spec.credit, from, &mail, &here).await {
            drop(mail.send(Mail::Gone { peer: from, reason: error.to_string() }));
        }
    };
    tokio::join!(carrier, take);
}

async fn take_all(
    sender: WireSender,
    mut receiver: WireReceiver,
    credit: usize,
    from: ActorId,
    mail: &MailSender,
    here: &flume::Receiver<()>,
) -> Result<(), StreamError> {
    let (dropped, numbers) = flume::bounded::<u64>(MAX_PARCELS);
    let lent = Arc::new(Credit::new(credit, mail.clone()));
    let mut next = 0;
    loop {
        tokio::select! {
            message = receiver.recv() => {
                let Some(message) = message? else { return Ok(()) };
                let mut parcel = contents::read(&message)?;
                // What is not yet dropped here is the producer's to count, and ours to check.
                let bytes = parcel.num_bytes();
                let guard = lent.take(bytes).ok_or(StreamError::TooLong { bytes, credit })?;
                let receipt = Receipt { number: next, dropped: dropped.clone(), guard: Some(guard) };
                parcel.credit = Some(CreditGuard::new(receipt));
                next += 1;
                // An engine that is gone drops it, which is noticed below.
                drop(mail.send(Mail::Parcel { from, parcel }));
            }
            number = numbers.recv_async() => {
                let Ok(number) = number else { return Ok(()) };
                let numbers = std::iter::once(number).chain(numbers.try_iter());
                let bytes: Vec<u8> = numbers.take(MAX_PARCELS).flat_map(u64::to_le_bytes).collect();
                // A producer that is gone needs no credit.
                sender.send(bytes).await;
            }
            _ = here.recv_async() => return Ok(()),
        }
    }
}

/// Gives a parcel's credit back when it is dropped.
struct Receipt {
    number: u64,
    dropped: flume::Sender<u64>,
    guard: Option<CreditGuard>,
}

impl Drop for Receipt {
    fn drop(&mut self) {
        // Here first: what the producer sends for it must find room.
        self.guard = None;
        // As long as the parcels that may be in flight: never full.
        let _ = self.dropped.try_send(self.number);
    }
}
