//! Sequence numbers of sent, received and acknowledged messages, which make a wire out of connections.

use super::WireError;
use super::packet::{Packet, PacketKind};
use bytes::Bytes;
use std::collections::VecDeque;

/// Messages that the other end has not acknowledged, in order.
pub struct Outbox {
    /// Number of the last message; the first one has 1.
    last: u64,
    kept: VecDeque<Packet>,
    /// The number of messages, the first ones, that were written on this connection.
    num_written: usize,
}

impl Outbox {
    /// Creates an outbox; `before`: number of messages sent and acknowledged by the former holder of this end.
    pub fn new(before: u64) -> Self {
        Self { last: before, kept: VecDeque::new(), num_written: 0 }
    }

    /// Numbers a message, and keeps it until it is acknowledged.
    pub fn push(&mut self, kind: PacketKind, contents: Bytes) {
        self.last += 1;
        self.kept.push_back(Packet::new(kind, self.last, contents));
    }

    /// Returns the packet that is to be written next.
    pub fn next(&mut self) -> Option<Packet> {
        let packet = self.kept.get(self.num_written)?.clone();
        self.num_written += 1;
        Some(packet)
    }

    /// # Errors
    /// That was never sent.
    pub fn acknowledged(&mut self, number: u64) -> Result<(), WireError> {
        if number > self.last {
            return Err(WireError::Acknowledged { number, sent: self.last });
        }
        while self.kept.front().is_some_and(|packet| packet.number <= number) {
            self.kept.pop_front();
            self.num_written = self.num_written.saturating_sub(1);
        }
        Ok(())
    }

    /// Continues on another connection, on which the other end reports what it has received.
    ///
    /// # Errors
    /// The other end needs what is not here any more, or was never sent.
    pub fn resume(&mut self, received: u64) -> Result<(), WireError> {
        self.acknowledged(received)?;
        if received + (self.kept.len() as u64) < self.last {
            return Err(WireError::Forgotten { number: received });
        }
        self.num_written = 0;
        Ok(())
    }

    /// Returns the number of the last message.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Returns the number of messages that are kept because the other end has not acknowledged them.
    pub fn len(&self) -> usize {
        self.kept.len()
    }
}

/// The decision about a message that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    New,
    /// It came before.
    Old,
}

/// # Errors
/// One before it is missing.
pub fn judge(received: u64, number: u64) -> Result<Verdict, WireError> {
    match number {
        number if number == received + 1 => Ok(Verdict::New),
        number if number <= received => Ok(Verdict::Old),
        number => Err(WireError::Gap { number, expected: received + 1 }),
    }
}

#[cfg(test)]
mod numbers {
    use super::*;
    use proptest::prelude::*;

    fn message(value: u8) -> Bytes {
        Bytes::copy_from_slice(&[value])
    }

    proptest! {
        /// Connections that lose, double and swap packets, and break: each message arrives once, in order.
        #[test]
        fn each_message_once_and_in_order(fates in prop::collection::vec(0_u8..8, 1..400)) {
            let (mut outbox, mut received, mut got) = (Outbox::new(0), 0, Vec::new());
            let (mut sent, mut on_the_way) = (0_u8, VecDeque::<Packet>::new());
            let resume = |outbox: &mut Outbox, way: &mut VecDeque<Packet>, received| {
                way.clear();
                outbox.resume(received).unwrap();
            };
            for fate in fates {
                match fate {
                    0 | 1 if sent < 100 => {
                        outbox.push(PacketKind::Message, message(sent));
                        sent += 1;
                    }
                    2 => drop(on_the_way.pop_front()),
                    3 => on_the_way.extend(on_the_way.front().cloned()),
                    4 if on_the_way.len() > 1 => on_the_way.swap(0, 1),
                    5 => outbox.acknowledged(received).unwrap(),
                    6 => resume(&mut outbox, &mut on_the_way, received),
                    _ => {
                        on_the_way.extend(outbox.next());
                        let Some(packet) = on_the_way.pop_front() else { continue };
                        match judge(received, packet.number) {
                            Ok(Verdict::New) => {
                                received += 1;
                                got.push(packet.contents[0]);
                            }
                            Ok(Verdict::Old) => {}
                            Err(_) => resume(&mut outbox, &mut on_the_way, received),
                        }
                    }
                }
            }
            resume(&mut outbox, &mut on_the_way, received);
            while let Some(packet) = outbox.next() {
                prop_assert_eq!(judge(received, packet.number), Ok(Verdict::New));
                received += 1;
                got.push(packet.contents[0]);
            }
            prop_assert_eq!(got, (0..sent).collect::<Vec<_>>());
        }
    }

    #[test]
    fn lies_about_numbers_are_named() {
        let mut outbox = Outbox::new(7);
        outbox.push(PacketKind::Message, message(1));
        outbox.push(PacketKind::Message, message(2));
        assert_eq!(outbox.acknowledged(10), Err(WireError::Acknowledged { number: 10, sent: 9 }));
        outbox.acknowledged(8).unwrap();
        assert_eq!(outbox.resume(7), Err(WireError::Forgotten { number: 7 }));
        outbox.resume(8).unwrap();
        assert_eq!(outbox.next().unwrap().number, 9);
    }
}
