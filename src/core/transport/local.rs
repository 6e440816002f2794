//! The edge inside a process: the parcel moves into the receiver's mailbox, and no byte is copied.

use super::{Credit, Edge, Mail, MailSender, Parcel, Refusal, Refused};
use crate::message::ActorId;

/// Sending end of an edge to an engine in this process.
pub struct LocalEdge {
    from: ActorId,
    to: MailSender,
    credit: Credit,
}

impl LocalEdge {
    /// Creates an edge from `from`, whose mailbox is `sender`, to the engine behind `receiver`, with `credit` bytes.
    pub fn new(from: ActorId, sender: MailSender, receiver: MailSender, credit: usize) -> Self {
        Self { from, to: receiver, credit: Credit::new(credit, sender) }
    }

    /// Returns a handle on the edge's credit, for measurements.
    pub fn credit(&self) -> Credit {
        self.credit.clone()
    }
}

impl Edge for LocalEdge {
    fn load(&mut self) -> (usize, usize) {
        (self.credit.in_flight(), self.credit.capacity())
    }

    fn try_send(&mut self, mut parcel: Parcel) -> Result<(), Refused> {
        let bytes = parcel.num_bytes();
        if bytes > self.credit.capacity() {
            let why = Refusal::TooLarge { bytes, credit: self.credit.capacity() };
            return Err(Refused { parcel, why });
        }
        let Some(guard) = self.credit.take(bytes) else {
            return Err(Refused { parcel, why: Refusal::NoCredit });
        };
        parcel.credit = Some(guard);
        match self.to.send(Mail::Parcel { from: self.from, parcel }) {
            Ok(()) => Ok(()),
            Err(Mail::Parcel { mut parcel, .. }) => {
                parcel.credit = None;
                Err(Refused { parcel, why: Refusal::Closed })
            }
            Err(_) => unreachable!("the mailbox gives back what it was given"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{StepId, UnitId, Version};
    use crate::transport::{Header, HostTensor, Mailbox, ParcelKind};
    use std::time::Duration;

    fn parcel(values: usize) -> Parcel {
        let header = Header { kind: ParcelKind::Items(UnitId { step: StepId(0), index: 0 }), version: Version(0) };
        Parcel::new(header, vec![Box::new(HostTensor::from_f32(&vec![1.0; values], &[values]))])
    }

    fn pair(credit: usize) -> (LocalEdge, Mailbox, Mailbox) {
        let (producer, consumer) = (Mailbox::new(1, 4), Mailbox::new(1, 4));
        let edge = LocalEdge::new(ActorId::data(0), producer.sender(), consumer.sender(), credit);
        (edge, producer, consumer)
    }

    #[test]
    fn credit_comes_back_with_the_drop_and_wakes_the_sender() {
        let (mut edge, producer, consumer) = pair(100);
        edge.try_send(parcel(20)).unwrap();
        let refused = edge.try_send(parcel(10)).unwrap_err();
        assert_eq!(refused.why, Refusal::NoCredit);
        assert_eq!(edge.credit().in_flight(), 80);
        assert!(producer.try_recv().is_none());
        drop(consumer.try_recv());
        assert!(matches!(producer.recv_timeout(Duration::from_secs(5)), Some(Mail::Credit)));
        assert_eq!(edge.credit().in_flight(), 0);
        edge.try_send(refused.parcel).unwrap();
    }

    #[test]
    fn a_parcel_beyond_the_whole_credit_is_named() {
        let (mut edge, _producer, _consumer) = pair(100);
        let refused = edge.try_send(parcel(26)).unwrap_err();
        assert_eq!(refused.why, Refusal::TooLarge { bytes: 104, credit: 100 });
    }

    #[test]
    fn a_gone_receiver_gives_everything_back() {
        let (mut edge, _producer, consumer) = pair(100);
        edge.try_send(parcel(20)).unwrap();
        drop(consumer);
        assert_eq!(edge.credit().in_flight(), 0);
        let refused = edge.try_send(parcel(5)).unwrap_err();
        assert_eq!(refused.why, Refusal::Closed);
        assert_eq!(edge.credit().in_flight(), 0);
    }
}
