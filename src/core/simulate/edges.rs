//! Edges between engines: credit in bytes and parcels, and what waits for it.
//!
//! Many thousands of ranks have many millions of edges. Only what is in flight to a rank from all others is counted, which
//! nearly always is less than what one of them may have in flight; what one has is looked up where that is not so.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

/// Parcels that may be in flight on one edge (`transport::credit`).
const MAX_PARCELS: u32 = 256;

/// Says what a parcel holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CargoKind {
    Pixels,
    Tokens,
    Features,
    Gradient,
}

/// A parcel on its way or waiting: `index` is of a unit, of tokens a pack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parcel {
    pub kind: CargoKind,
    pub step: u64,
    pub index: u32,
    /// Ranks.
    pub from: u32,
    pub to: u32,
    pub bytes: u64,
    /// The time at which it was ready; of one on its way, when it is there.
    pub time: f64,
}

/// The parcels in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    bytes: u64,
    parcels: u32,
}

impl Load {
    /// Adds a parcel.
    pub fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.parcels += 1;
    }

    /// Takes a parcel away that was added.
    pub fn remove(&mut self, bytes: u64) {
        self.bytes -= bytes;
        self.parcels -= 1;
    }

    /// Returns whether no parcel is in flight.
    pub fn is_empty(self) -> bool {
        self.parcels == 0
    }

    fn has_room(self, bytes: u64, credit: u64) -> bool {
        self.bytes + bytes <= credit && self.parcels < MAX_PARCELS
    }
}

pub(super) struct Edges {
    /// Parcels without credit, by kind and ranks.
    waiting: BTreeMap<(CargoKind, u32, u32), VecDeque<Parcel>>,
    /// The credit of an edge, by kind.
    credits: [u64; 4],
    /// Seconds that parcels waited for credit, by kind.
    pub waited: [f64; 4],
}

impl Edges {
    /// Makes edges with credits in bytes, by what parcels hold.
    pub fn new(credits: [u64; 4]) -> Self {
        Self { waiting: BTreeMap::new(), credits, waited: [0.0; 4] }
    }

    /// Returns whether there is credit for a parcel, and none before it waits. `to_receiver`: what is in flight to its
    /// receiver, of its kind; `on_edge`: of that, what is from its sender.
    pub fn has_credit(&self, parcel: &Parcel, to_receiver: Load, on_edge: impl FnOnce() -> Load) -> bool {
        let credit = self.credits[parcel.kind as usize];
        !self.waits(parcel) && (to_receiver.has_room(parcel.bytes, credit) || on_edge().has_room(parcel.bytes, credit))
    }

    /// Returns whether a parcel waits on the edge of this one.
    pub fn waits(&self, parcel: &Parcel) -> bool {
        !self.waiting.is_empty() && self.waiting.contains_key(&(parcel.kind, parcel.from, parcel.to))
    }

    /// Has a parcel wait for credit.
    pub fn wait(&mut self, parcel: Parcel) {
        self.waiting.entry((parcel.kind, parcel.from, parcel.to)).or_default().push_back(parcel);
    }

    /// Returns the parcels that go now, as one like this one has given its credit back. `on_edge`: what else is in flight there.
    pub fn release(&mut self, now: f64, &Parcel { kind, from, to, .. }: &Parcel, mut on_edge: Load) -> Vec<Parcel> {
        let mut sent = Vec::new();
        if let Entry::Occupied(mut entry) = self.waiting.entry((kind, from, to)) {
            let credit = self.credits[kind as usize];
            let waiting = entry.get_mut();
            while let Some(parcel) = waiting.pop_front_if(|next| on_edge.has_room(next.bytes, credit)) {
                on_edge.add(parcel.bytes);
                self.waited[kind as usize] += now - parcel.time;
                sent.push(parcel);
            }
            if waiting.is_empty() {
                entry.remove();
            }
        }
        sent
    }

    /// Returns whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_bounds_what_is_in_flight_and_order_is_kept() {
        let mut edges = Edges::new([100, 0, 0, 0]);
        let parcel = |bytes, time| Parcel { kind: CargoKind::Pixels, step: 0, index: 0, from: 1, to: 2, bytes, time };
        let load = |bytes: &[u64]| {
            let mut load = Load::default();
            bytes.iter().for_each(|&bytes| load.add(bytes));
            load
        };
        assert!(edges.has_credit(&parcel(60, 0.0), load(&[]), || unreachable!("less than one edge's credit")));
        assert!(!edges.has_credit(&parcel(50, 1.0), load(&[60]), || load(&[60])));
        edges.wait(parcel(50, 1.0));
        // It would fit, and yet comes after the one that waits.
        assert!(!edges.has_credit(&parcel(10, 2.0), load(&[60]), || load(&[60])));
        edges.wait(parcel(10, 2.0));
        // Another sender has credit of its own.
        assert!(edges.has_credit(&Parcel { from: 0, ..parcel(50, 3.0) }, load(&[60]), || load(&[])));
        assert!(edges.release(3.5, &parcel(1, 0.0), load(&[60])).is_empty());
        let sent = edges.release(4.0, &parcel(60, 0.0), load(&[]));
        assert_eq!(sent.iter().map(|parcel| parcel.bytes).collect::<Vec<_>>(), [50, 10]);
        assert_eq!(edges.waited[0], 5.0);
        assert!(edges.is_empty());
    }
}
