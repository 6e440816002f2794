//! Edges between engines: credit in bytes and parcels, and what waits for it.

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
    /// When it was ready.
    pub since: f64,
}

/// All edges, of which only those are remembered on which something is in flight: many thousands of ranks have many millions.
pub(super) struct Edges {
    /// By kind and receiving rank: senders that have something on the way there.
    open: [Vec<Vec<Edge>>; 4],
    /// Parcels without credit, by kind and ranks.
    waiting: BTreeMap<(Kind, u32, u32), VecDeque<Parcel>>,
    /// By kind.
    credits: [u64; 4],
    /// Seconds that parcels waited for credit, by kind.
    pub waited: [f64; 4],
}

/// What is in flight.
#[derive(Default)]
struct Edge {
    from: u32,
    parcels: u32,
    bytes: u64,
}

impl Edge {
    /// Takes credit, if there is enough.
    fn take(&mut self, bytes: u64, credit: u64) -> bool {
        let fits = self.bytes + bytes <= credit && self.parcels < MAX_PARCELS;
        if fits {
            self.bytes += bytes;
            self.parcels += 1;
        }
        fits
    }
}

impl Edges {
    pub fn new(credits: [u64; 4], num_ranks: usize) -> Self {
        let open = std::array::from_fn(|_| (0..num_ranks).map(|_| Vec::new()).collect());
        Self { open, waiting: BTreeMap::new(), credits, waited: [0.0; 4] }
    }

    /// Takes credit for a parcel; false: it waits.
    pub fn send(&mut self, parcel: Parcel) -> bool {
        let Parcel { kind, from, to, bytes, .. } = parcel;
        let is_next = self.waiting.is_empty() || !self.waiting.contains_key(&(kind, from, to));
        let credit = self.credits[kind as usize];
        let edges = &mut self.open[kind as usize][to as usize];
        let goes = is_next
            && match edges.iter_mut().find(|edge| edge.from == from) {
                Some(edge) => edge.take(bytes, credit),
                None => {
                    let mut edge = Edge { from, ..Edge::default() };
                    let goes = edge.take(bytes, credit);
                    edges.extend(goes.then_some(edge));
                    goes
                }
            };
        if !goes {
            self.waiting.entry((kind, from, to)).or_default().push_back(parcel);
        }
        goes
    }

    /// Gives a parcel's credit back; the parcels that go now.
    pub fn give_back(&mut self, now: f64, kind: Kind, from: u32, to: u32, bytes: u64) -> Vec<Parcel> {
        let edges = &mut self.open[kind as usize][to as usize];
        let at = edges.iter().position(|edge| edge.from == from).expect("credit that was taken");
        let edge = &mut edges[at];
        edge.bytes -= bytes;
        edge.parcels -= 1;
        let mut sent = Vec::new();
        if !self.waiting.is_empty()
            && let Entry::Occupied(mut entry) = self.waiting.entry((kind, from, to))
        {
            let waiting = entry.get_mut();
            while let Some(parcel) = waiting.pop_front_if(|next| edge.take(next.bytes, self.credits[kind as usize])) {
                self.waited[kind as usize] += now - parcel.since;
                sent.push(parcel);
            }
            if waiting.is_empty() {
                entry.remove();
            }
        }
        if edges[at].parcels == 0 {
            edges.swap_remove(at);
        }
        sent
    }

    /// Whether anything is in flight or waits.
    pub fn is_empty(&self) -> bool {
        self.open.iter().flatten().all(Vec::is_empty) && self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_bounds_what_is_in_flight_and_order_is_kept() {
        let mut edges = Edges::new([100, 0, 0, 0], 3);
        let parcel = |bytes, since| Parcel { kind: Kind::Pixels, step: 0, index: 0, from: 1, to: 2, bytes, since };
        assert!(edges.send(parcel(60, 0.0)));
        assert!(!edges.send(parcel(50, 1.0)));
        // It would fit, and yet comes after the one that waits.
        assert!(!edges.send(parcel(10, 2.0)));
        let sent = edges.give_back(4.0, Kind::Pixels, 1, 2, 60);
        assert_eq!(sent.iter().map(|parcel| parcel.bytes).collect::<Vec<_>>(), [50, 10]);
        assert_eq!(edges.waited[0], 5.0);
        assert!(edges.give_back(4.0, Kind::Pixels, 1, 2, 50).is_empty());
        assert!(edges.give_back(4.0, Kind::Pixels, 1, 2, 10).is_empty());
        assert!(edges.is_empty());
    }
}
