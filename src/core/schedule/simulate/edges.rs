//! Edges between engines: credit in bytes and parcels, and what waits for it.
//!
//! Many thousands of ranks have many millions of edges. Only what is in flight to a rank from all others is counted, which
//! nearly always is less than what one of them may have in flight; what one has is looked up where that is not so.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

/// Parcels that may be in flight on one edge (`transport::credit`).
const MAX_PARCELS: u32 = 256;

/// What a parcel holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Pixels,
    Tokens,
    Features,
    Gradient,
}

/// A parcel on its way or waiting: `index` is of a unit, of tokens a pack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parcel {
    pub kind: Kind,
    pub step: u64,
    pub index: u32,
    /// Ranks.
    pub from: u32,
    pub to: u32,
    pub bytes: u64,
    /// When it was ready; of one on its way, when it is there.
    pub time: f64,
}

/// What is in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    bytes: u64,
    parcels: u32,
}

impl Load {
    pub fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.parcels += 1;
    }

    fn has_room(self, bytes: u64, credit: u64) -> bool {
        self.bytes + bytes <= credit && self.parcels < MAX_PARCELS
    }
}

pub(super) struct Edges {
    /// By receiving rank and kind, from all senders.
    loads: Vec<[Load; 4]>,
    /// Parcels without credit, by kind and ranks.
    waiting: BTreeMap<(Kind, u32, u32), VecDeque<Parcel>>,
    /// By kind.
    credits: [u64; 4],
    /// Seconds that parcels waited for credit, by kind.
    pub waited: [f64; 4],
}

impl Edges {
    pub fn new(credits: [u64; 4], num_ranks: usize) -> Self {
        Self { loads: vec![Default::default(); num_ranks], waiting: BTreeMap::new(), credits, waited: [0.0; 4] }
    }

    /// Takes credit for a parcel; false: it waits. `on_edge`: what is in flight on its edge.
    pub fn send(&mut self, parcel: Parcel, on_edge: impl FnOnce() -> Load) -> bool {
        let Parcel { kind, from, to, bytes, .. } = parcel;
        let is_next = self.waiting.is_empty() || !self.waiting.contains_key(&(kind, from, to));
        let credit = self.credits[kind as usize];
        let load = &mut self.loads[to as usize][kind as usize];
        let goes = is_next && (load.has_room(bytes, credit) || on_edge().has_room(bytes, credit));
        if goes {
            load.add(bytes);
        } else {
            self.waiting.entry((kind, from, to)).or_default().push_back(parcel);
        }
        goes
    }

    /// Gives a parcel's credit back; the parcels that go now. `on_edge`: what else is in flight on its edge.
    pub fn give_back(&mut self, now: f64, parcel: &Parcel, on_edge: impl FnOnce() -> Load) -> Vec<Parcel> {
        let &Parcel { kind, from, to, bytes, .. } = parcel;
        let load = &mut self.loads[to as usize][kind as usize];
        load.bytes -= bytes;
        load.parcels -= 1;
        let mut sent = Vec::new();
        if !self.waiting.is_empty()
            && let Entry::Occupied(mut entry) = self.waiting.entry((kind, from, to))
        {
            let (mut on_edge, credit) = (on_edge(), self.credits[kind as usize]);
            let waiting = entry.get_mut();
            while let Some(parcel) = waiting.pop_front_if(|next| on_edge.has_room(next.bytes, credit)) {
                on_edge.add(parcel.bytes);
                load.add(parcel.bytes);
                self.waited[kind as usize] += now - parcel.time;
                sent.push(parcel);
            }
            if waiting.is_empty() {
                entry.remove();
            }
        }
        sent
    }

    /// Whether anything is in flight or waits.
    pub fn is_empty(&self) -> bool {
        self.loads.iter().flatten().all(|load| load.parcels == 0) && self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_bounds_what_is_in_flight_and_order_is_kept() {
        let mut edges = Edges::new([100, 0, 0, 0], 3);
        let parcel = |bytes, time| Parcel { kind: Kind::Pixels, step: 0, index: 0, from: 1, to: 2, bytes, time };
        let on_edge = |bytes: &[u64]| {
            let mut load = Load::default();
            bytes.iter().for_each(|&bytes| load.add(bytes));
            move || load
        };
        assert!(edges.send(parcel(60, 0.0), on_edge(&[])));
        assert!(!edges.send(parcel(50, 1.0), on_edge(&[60])));
        // It would fit, and yet comes after the one that waits.
        assert!(!edges.send(parcel(10, 2.0), on_edge(&[60])));
        // Another sender has credit of its own.
        assert!(edges.send(Parcel { from: 0, ..parcel(50, 3.0) }, on_edge(&[])));
        let sent = edges.give_back(4.0, &parcel(60, 0.0), on_edge(&[]));
        assert_eq!(sent.iter().map(|parcel| parcel.bytes).collect::<Vec<_>>(), [50, 10]);
        assert_eq!(edges.waited[0], 5.0);
        for bytes in [50, 10, 50] {
            assert!(edges.give_back(4.0, &parcel(bytes, 0.0), on_edge(&[])).is_empty());
        }
        assert!(edges.is_empty());
    }
}
