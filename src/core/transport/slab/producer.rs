//! The sending end of a slab: copies tensors into slots, publishes headers, takes returned slots back.

use super::bell::Bell;
use super::control::{Contents, Control, Placed, SLOTS, SlabLayout, place};
use super::lifeline::{Life, Lifeline};
use super::map::{Memory, Record, Writer};
use super::slots::Slots;
use crate::message::ActorId;
use crate::transport::mailbox::Source;
use crate::transport::{Edge, Mail, Parcel, Refusal, Refused};
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering::{Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, fence};
use std::sync::{Arc, OnceLock};

/// Sending end of an edge to an engine in another process.
pub struct SlabEdge {
    shared: Arc<Outgoing>,
    memory: Memory,
    arena: Writer,
    layout: SlabLayout,
    slots: Slots,
    credit: usize,
    sent: u32,
}

/// State that the edge shares with its lookout in the mailbox.
struct Outgoing {
    to: ActorId,
    control: Record<Control>,
    lifeline: Lifeline,
    /// The consumer's; comes when it accepts.
    bell: OnceLock<Bell>,
    /// A send was refused, and no [`Mail::Credit`] has answered yet.
    refused: AtomicBool,
    /// Slots taken back.
    returned: AtomicU32,
    fault: OnceLock<String>,
    /// The edge was dropped, or the consumer is gone.
    over: AtomicBool,
}

impl SlabEdge {
    /// Creates an edge over `memory`, and its lookout for the producer's mailbox.
    pub(super) fn new(
        memory: Memory,
        layout: SlabLayout,
        credit: usize,
        to: ActorId,
        lifeline: Lifeline,
    ) -> io::Result<(Self, Box<dyn Source>)> {
        let shared = Arc::new(Outgoing {
            to,
            control: memory.record()?,
            lifeline,
            bell: OnceLock::new(),
            refused: AtomicBool::new(false),
            returned: AtomicU32::new(0),
            fault: OnceLock::new(),
            over: AtomicBool::new(false),
        });
        let arena = memory.writer(layout.arena())?;
        let lookout = Box::new(Lookout(shared.clone()));
        Ok((Self { shared, memory, arena, layout, slots: Slots::new(credit), credit, sent: 0 }, lookout))
    }

    /// Returns the bytes of parcels sent and not yet returned.
    pub fn in_flight(&mut self) -> usize {
        self.take_back();
        self.slots.in_flight()
    }

    /// Does what only a broken peer would.
    #[cfg(test)]
    pub(super) fn corrupt(&self, how: impl FnOnce(&Control)) {
        how(&self.shared.control);
        self.shared.ring();
    }

    fn take_back(&mut self) {
        let control = &self.shared.control;
        let mut returned = self.shared.returned.load(SeqCst);
        let freed = control.freed[0].load(SeqCst);
        let sane = freed.wrapping_sub(returned) as usize <= SLOTS;
        while sane && returned != freed {
            let slot = control.freed_slots[returned as usize % SLOTS].load(SeqCst);
            if !self.slots.give_back(slot as usize) {
                self.shared.break_off(format!("it returned slot {slot}, which it did not have"));
                return;
            }
            returned = returned.wrapping_add(1);
        }
        self.shared.returned.store(returned, Release);
        if !sane {
            self.shared.break_off(format!("it returned {freed} slots, but only {} were sent", self.sent));
        }
    }

    /// Returns a slot for the parcel; on refusal, the consumer is asked to ring when it returns one.
    fn take(&mut self, bytes: usize, room: usize) -> Option<super::slots::FreeSlot> {
        self.take_back();
        self.slots.take(bytes, room).or_else(|| {
            // Announce first, then look again: what came back in between is not missed.
            self.shared.refused.store(true, SeqCst);
            self.shared.control.starved[0].store(1, SeqCst);
            self.take_back();
            self.slots.take(bytes, room).inspect(|_| {
                self.shared.refused.store(false, SeqCst);
                self.shared.control.starved[0].store(0, SeqCst);
            })
        })
    }

    fn refusal(&self, bytes: usize, num_tensors: usize, placed: &Option<Placed>) -> Option<Refusal> {
        if placed.is_none() {
            Some(Refusal::Unfit { num_tensors })
        } else if bytes > self.credit {
            Some(Refusal::TooLarge { bytes, credit: self.credit })
        } else {
            self.shared.is_closed().then_some(Refusal::Closed)
        }
    }
}

impl Edge for SlabEdge {
    fn load(&mut self) -> (usize, usize) {
        (self.in_flight(), self.credit)
    }

    fn try_send(&mut self, parcel: Parcel) -> Result<(), Refused> {
        let placed = place(parcel.tensors.iter().map(|tensor| tensor.meta()));
        let bytes = placed.iter().flatten().map(|(_, place)| place.len()).sum();
        if let Some(why) = self.refusal(bytes, parcel.tensors.len(), &placed) {
            return Err(Refused { parcel, why });
        }
        let tensors = placed.expect("else refused");
        let mut contents = Contents { header: parcel.header, slot: 0, tensors };
        let Some(taken) = self.take(bytes, contents.room()) else {
            let why = if self.shared.is_closed() { Refusal::Closed } else { Refusal::NoCredit };
            return Err(Refused { parcel, why });
        };
        contents.slot = taken.slot;
        let in_arena = |slot: usize, range: &Range<usize>| {
            let start = slot * self.layout.slot;
            start + range.start..start + range.end
        };
        // Its cache lines come from the consumer while tensors are copied; nothing is read before it is counted as sent.
        contents.write(&self.shared.control.headers[self.sent as usize % SLOTS]);
        for (slot, range) in &taken.punch {
            let range = in_arena(*slot, range);
            self.memory.punch(self.layout.arena + range.start..self.layout.arena + range.end);
        }
        if !taken.cold.is_empty() {
            self.arena.populate(in_arena(taken.slot, &taken.cold));
        }
        for (tensor, (_, place)) in parcel.tensors.iter().zip(&contents.tensors) {
            tensor.copy_to(self.arena.bytes(in_arena(taken.slot, place)));
        }
        self.sent = self.sent.wrapping_add(1);
        self.shared.control.sent[0].store(self.sent, Release);
        self.shared.ring();
        Ok(())
    }
}

impl Drop for SlabEdge {
    /// Leaves in order: what was sent is still delivered, and the consumer does not take it for a loss. In a panic the consumer takes
    /// it for a loss.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.shared.control.left[0].store(1, SeqCst);
        }
        self.shared.over.store(true, SeqCst);
        self.shared.lifeline.cut();
        self.shared.ring();
    }
}

impl Outgoing {
    fn ring(&self) {
        // Before the consumer accepts there is no bell; it looks for parcels after it has sent its bell. What was counted as sent
        // must be seen by then, and a bell's own fence comes too late for the look.
        if self.bell.get().is_none() {
            fence(SeqCst);
            self.look();
        }
        if let Some(bell) = self.bell.get() {
            bell.ring();
        }
    }

    fn look(&self) {
        match self.lifeline.look() {
            Life::Quiet => {}
            Life::Bell(bell) => {
                let _ = self.bell.set(bell);
            }
            Life::Ended => {
                if self.control.left[1].load(SeqCst) == 0 && !self.over.load(SeqCst) {
                    let _ = self.fault.set("its process ended or broke the connection".to_owned());
                }
            }
        }
    }

    fn is_closed(&self) -> bool {
        self.over.load(SeqCst) || self.fault.get().is_some() || self.control.left[1].load(SeqCst) != 0
    }

    fn break_off(&self, fault: String) {
        let _ = self.fault.set(fault);
        self.lifeline.cut();
    }
}

/// Watches for returned credit and for the consumer's end.
struct Lookout(Arc<Outgoing>);

impl Source for Lookout {
    fn poll(&mut self) -> Option<Mail> {
        let edge = &self.0;
        if edge.over.load(SeqCst) {
            return None;
        }
        if let Some(reason) = edge.fault.get() {
            edge.over.store(true, SeqCst);
            return Some(Mail::Gone { peer: edge.to, reason: reason.clone() });
        }
        // A consumer that has left answers too: the next try says so.
        let came_back = edge.control.freed[0].load(SeqCst) != edge.returned.load(SeqCst);
        ((came_back || edge.is_closed()) && edge.refused.swap(false, SeqCst)).then_some(Mail::Credit)
    }

    fn check(&mut self) {
        self.0.look();
    }

    fn is_over(&self) -> bool {
        self.0.over.load(SeqCst)
    }
}
