//! Selects the slot of the arena for the next parcel. This is the producer's private state; nothing here is shared.
//!
//! Every slot can hold a parcel of the whole credit, so a free slot always fits and only memory matters: of the slots of about the
//! parcel's size whose pages are already mapped, the most recently returned one is used, since it is most likely in a cache;
//! otherwise the smallest that is large enough, else the largest is grown. Pages in use are then at most twice the credit, plus two
//! pages per slot: beyond that, the largest unused ranges are released.

use super::control::SLOTS;
use super::map::{PAGE, pages};
use std::ops::Range;

pub(super) struct Slots {
    credit: usize,
    slots: [Slot; SLOTS],
    /// The slots that came back, in this order.
    free: Vec<usize>,
    bytes: usize,
    /// Bytes of all slots that have pages.
    touched: usize,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    /// Bytes of the parcel in it, as counted against the credit.
    lent: Option<usize>,
    /// Bytes of it that are in use, and that have pages. Both whole pages.
    used: usize,
    touched: usize,
}

/// A slot to write to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FreeSlot {
    pub(super) slot: usize,
    /// Part of the slot that has no pages yet.
    pub(super) cold: Range<usize>,
    /// Stretches, by slot, to be given back to the system.
    pub(super) punch: Vec<(usize, Range<usize>)>,
}

impl Slots {
    /// Makes slots that are all free, for parcels of `credit` bytes together.
    pub(super) fn new(credit: usize) -> Self {
        let free = (0..SLOTS).rev().collect();
        Self { credit, slots: [Slot::default(); SLOTS], free, bytes: 0, touched: 0 }
    }

    /// Returns the bytes of lent parcels.
    pub(super) fn in_flight(&self) -> usize {
        self.bytes
    }

    /// Takes a slot for a parcel that counts `bytes` and uses `room` of the slot; returns `None` without credit.
    pub(super) fn take(&mut self, bytes: usize, room: usize) -> Option<FreeSlot> {
        if self.bytes + bytes > self.credit {
            return None;
        }
        let room = pages(room);
        let touched = |&place: &usize| self.slots[self.free[place]].touched;
        let places = || (0..self.free.len()).rev();
        let alike = places().find(|place| (room..=2 * room).contains(&touched(place)));
        let hot = || places().filter(|place| touched(place) >= room).min_by_key(touched);
        let place = alike.or_else(hot).or_else(|| places().max_by_key(touched))?;
        let slot = self.free.remove(place);
        let touched = self.slots[slot].touched;
        self.slots[slot] = Slot { lent: Some(bytes), used: room, touched: touched.max(room) };
        self.touched += room.saturating_sub(touched);
        self.bytes += bytes;
        Some(FreeSlot { slot, cold: touched.min(room)..room, punch: self.trim() })
    }

    /// Ends a loan; returns false if `slot` is not lent.
    pub(super) fn give_back(&mut self, slot: usize) -> bool {
        let Some(bytes) = self.slots.get_mut(slot).and_then(|slot| slot.lent.take()) else { return false };
        self.slots[slot].used = 0;
        self.free.push(slot);
        self.bytes -= bytes;
        true
    }

    fn trim(&mut self) -> Vec<(usize, Range<usize>)> {
        let limit = 2 * self.credit + 2 * PAGE * SLOTS;
        let mut punch = Vec::new();
        while self.touched > limit {
            let idle = |slot: &Slot| slot.touched - slot.used;
            let (index, slot) = self.slots.iter_mut().enumerate().max_by_key(|(_, slot)| idle(slot)).expect("slots");
            punch.push((index, slot.used..slot.touched));
            self.touched -= idle(slot);
            slot.touched = slot.used;
        }
        punch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CREDIT: usize = 1 << 20;

    #[test]
    fn a_slot_stays_hot() {
        let mut slots = Slots::new(CREDIT);
        let first = slots.take(5000, 5000).unwrap();
        assert_eq!(first.cold, 0..8192);
        assert!(slots.give_back(first.slot));
        assert!(!slots.give_back(first.slot) && !slots.give_back(SLOTS));
        let again = slots.take(8000, 8000).unwrap();
        assert_eq!((again.slot, again.cold.len()), (first.slot, 0));
    }

    proptest! {
        #[test]
        fn within_the_credit_nothing_is_refused_and_memory_is_bounded(
            sizes in prop::collection::vec((0usize..CREDIT, any::<prop::sample::Index>(), 0usize..4), 1..300),
        ) {
            let mut slots = Slots::new(CREDIT);
            let mut lent: Vec<(usize, usize)> = Vec::new();
            let mut real = [0usize; SLOTS];
            for (bytes, which, drops) in sizes {
                // Small parcels and large ones.
                let bytes = if drops == 0 { bytes } else { bytes % 10_000 };
                for _ in 0..drops.min(lent.len()) {
                    let (slot, _) = lent.swap_remove(which.index(lent.len()));
                    prop_assert!(slots.give_back(slot));
                }
                let total: usize = lent.iter().map(|(_, bytes)| bytes).sum();
                let taken = slots.take(bytes, bytes + 512);
                prop_assert_eq!(taken.is_some(), total + bytes <= CREDIT && lent.len() < SLOTS);
                if let Some(taken) = taken {
                    prop_assert!(lent.iter().all(|&(slot, _)| slot != taken.slot));
                    lent.push((taken.slot, bytes));
                    prop_assert!(taken.cold.is_empty() || taken.cold.start == real[taken.slot]);
                    real[taken.slot] = real[taken.slot].max(taken.cold.end);
                    for (slot, range) in taken.punch {
                        prop_assert!(lent.iter().all(|&(other, bytes)| other != slot || bytes + 512 <= range.start));
                        real[slot] = range.start;
                    }
                }
                prop_assert!(real.iter().sum::<usize>() <= 2 * CREDIT + 2 * PAGE * SLOTS);
                prop_assert_eq!(slots.in_flight(), lent.iter().map(|(_, bytes)| bytes).sum::<usize>());
            }
        }
    }
}
