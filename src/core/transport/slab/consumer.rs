//! The receiving end of a slab: reads headers, lends slot memory to the engine, returns slots.

use super::bell::Bell;
use super::control::{Contents, Control, SLOTS, SlabLayout};
use super::lifeline::{Life, Lifeline};
use super::map::{Memory, Reader, Record};
use crate::message::ActorId;
use crate::transport::mailbox::Source;
use crate::transport::{Buffer, CreditGuard, Mail, Parcel, TensorMeta};
use std::any::Any;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

/// The consumer's side of a slab; lives as long as any tensor in it.
struct Incoming {
    control: Record<Control>,
    arena: Reader,
    layout: SlabLayout,
    credit: usize,
    /// The producer's.
    bell: Bell,
    lent: Mutex<Lent>,
}

/// Slots received from the producer and not yet returned.
struct Lent {
    slots: [bool; SLOTS],
    bytes: usize,
    freed: u32,
}

/// One slot, held until the last holder drops it.
struct Lease {
    incoming: Arc<Incoming>,
    slot: usize,
    bytes: usize,
}

/// A tensor in the slot where the producer wrote it. It keeps the slot, and the mapping, alive.
pub struct SlotTensor {
    meta: TensorMeta,
    /// The place of its bytes in the arena.
    place: Range<usize>,
    lease: Arc<Lease>,
}

impl Buffer for SlotTensor {
    fn meta(&self) -> TensorMeta {
        self.meta.clone()
    }

    fn copy_to(&self, out: &mut [u8]) {
        out.copy_from_slice(self.lease.incoming.arena.bytes(self.place.clone()));
    }

    fn bytes(&self) -> Option<&[u8]> {
        Some(self.lease.incoming.arena.bytes(self.place.clone()))
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl Incoming {
    fn lend(self: &Arc<Self>, slot: usize, bytes: usize) -> Result<Arc<Lease>, String> {
        let mut lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        if lent.slots[slot] {
            return Err(format!("slot {slot}, which is in use"));
        }
        if lent.bytes + bytes > self.credit {
            return Err(format!("{bytes} bytes, but {} of {} were already in flight", lent.bytes, self.credit));
        }
        lent.slots[slot] = true;
        lent.bytes += bytes;
        Ok(Arc::new(Lease { incoming: self.clone(), slot, bytes }))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let incoming = &self.incoming;
        let mut lent = incoming.lent.lock().unwrap_or_else(PoisonError::into_inner);
        lent.slots[self.slot] = false;
        lent.bytes -= self.bytes;
        // The producer reads it after the count alone.
        incoming.control.freed_slots[lent.freed as usize % SLOTS].store(self.slot as u32, Relaxed);
        lent.freed = lent.freed.wrapping_add(1);
        incoming.control.freed[0].store(lent.freed, SeqCst);
        drop(lent);
        if incoming.control.starved[0].swap(0, SeqCst) != 0 {
            incoming.bell.ring();
        }
    }
}

/// Receives parcels from a slab for a mailbox.
pub(super) struct Receiver {
    from: ActorId,
    incoming: Arc<Incoming>,
    lifeline: Lifeline,
    received: u32,
    /// Bytes of each slot whose page faults were taken.
    touched: Box<[usize; SLOTS]>,
    /// True if the producer left or was lost; what it sent before is still delivered.
    ended: bool,
    over: bool,
}

impl Receiver {
    /// Maps the slab of a producer, and receives from it.
    ///
    /// # Errors
    /// Fails if the memory cannot be mapped.
    pub(super) fn new(
        from: ActorId,
        memory: &Memory,
        layout: SlabLayout,
        credit: usize,
        bell: Bell,
        lifeline: Lifeline,
    ) -> io::Result<Self> {
        let incoming = Incoming {
            control: memory.record()?,
            arena: memory.reader(layout.arena())?,
            layout,
            credit,
            bell,
            lent: Mutex::new(Lent { slots: [false; SLOTS], bytes: 0, freed: 0 }),
        };
        let touched = Box::new([0; SLOTS]);
        Ok(Self { from, incoming: Arc::new(incoming), lifeline, received: 0, touched, ended: false, over: false })
    }

    fn receive(&mut self) -> Result<Option<Parcel>, String> {
        let incoming = &self.incoming;
        let waiting = incoming.control.sent[0].load(SeqCst).wrapping_sub(self.received) as usize;
        if waiting == 0 {
            return Ok(None);
        }
        if waiting > SLOTS {
            return Err(format!("{waiting} parcels at once, more than the limit of {SLOTS}"));
        }
        let contents = Contents::read(&incoming.control.headers[self.received as usize % SLOTS], incoming.credit)?;
        let lease = incoming.lend(contents.slot, contents.num_bytes())?;
        self.received = self.received.wrapping_add(1);
        let start = contents.slot * incoming.layout.slot;
        let touched = &mut self.touched[contents.slot];
        if contents.room() > *touched {
            incoming.arena.populate(start..start + contents.room());
            *touched = contents.room();
        }
        let tensor = |(meta, place): (TensorMeta, Range<usize>)| -> Box<dyn Buffer> {
            let place = start + place.start..start + place.end;
            Box::new(SlotTensor { meta, place, lease: lease.clone() })
        };
        let mut parcel = Parcel::new(contents.header, contents.tensors.into_iter().map(tensor).collect());
        parcel.credit = Some(CreditGuard::new(lease));
        Ok(Some(parcel))
    }

    fn gone(&mut self, reason: String) -> Option<Mail> {
        self.over = true;
        self.lifeline.cut();
        Some(Mail::Gone { peer: self.from, reason })
    }
}

impl Source for Receiver {
    fn poll(&mut self) -> Option<Mail> {
        if self.over {
            return None;
        }
        // Before looking for parcels: whoever left had sent them by then.
        let left = self.incoming.control.left[0].load(SeqCst) != 0;
        match self.receive() {
            Ok(Some(parcel)) => Some(Mail::Parcel { from: self.from, parcel }),
            Ok(None) if left => {
                self.over = true;
                None
            }
            Ok(None) if self.ended => self.gone("its process ended or broke the connection".to_owned()),
            Ok(None) => None,
            Err(nonsense) => self.gone(format!("it sent {nonsense}")),
        }
    }

    fn check(&mut self) {
        self.ended |= !matches!(self.lifeline.look(), Life::Quiet);
    }

    fn is_over(&self) -> bool {
        self.over
    }
}

impl Drop for Receiver {
    /// Leaves in order, but for a panic or after a fault of the peer.
    fn drop(&mut self) {
        if !self.over && !std::thread::panicking() {
            self.incoming.control.left[1].store(1, SeqCst);
        }
        self.lifeline.cut();
        self.incoming.bell.ring();
    }
}
