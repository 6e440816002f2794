//! Edges between engines: credit in bytes and parcels, and what waits for it.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

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

/// All edges. One is remembered only while something is in flight on it: many thousands of ranks have many millions.
pub(super) struct Edges {
    open: HashMap<Key, Edge, BuildHasherDefault<Mix>>,
    /// Parcels without credit, apart from what is looked at all the time.
    waiting: HashMap<Key, VecDeque<Parcel>, BuildHasherDefault<Mix>>,
    /// By kind.
    credits: [u64; 4],
    /// Seconds that parcels waited for credit, by kind.
    pub waited: [f64; 4],
}

/// Kind and ranks.
type Key = (u8, u32, u32);

/// What is in flight.
#[derive(Default)]
struct Edge {
    bytes: u64,
    parcels: u32,
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
    pub fn new(credits: [u64; 4]) -> Self {
        Self { open: HashMap::default(), waiting: HashMap::default(), credits, waited: [0.0; 4] }
    }

    /// Takes credit for a parcel; false: it waits.
    pub fn send(&mut self, parcel: Parcel) -> bool {
        let key = (parcel.kind as u8, parcel.from, parcel.to);
        let is_next = self.waiting.is_empty() || !self.waiting.contains_key(&key);
        let credit = self.credits[parcel.kind as usize];
        let goes = is_next && self.open.entry(key).or_default().take(parcel.bytes, credit);
        if !goes {
            self.waiting.entry(key).or_default().push_back(parcel);
        }
        goes
    }

    /// Gives a parcel's credit back; parcels that go now are added to `sent`.
    pub fn give_back(&mut self, now: f64, kind: Kind, from: u32, to: u32, bytes: u64, sent: &mut Vec<Parcel>) {
        let key = (kind as u8, from, to);
        let edge = self.open.get_mut(&key).expect("credit that was taken");
        edge.bytes -= bytes;
        edge.parcels -= 1;
        if !self.waiting.is_empty()
            && let Some(waiting) = self.waiting.get_mut(&key)
        {
            while let Some(parcel) = waiting.pop_front_if(|next| edge.take(next.bytes, self.credits[kind as usize])) {
                self.waited[kind as usize] += now - parcel.since;
                sent.push(parcel);
            }
            if waiting.is_empty() {
                self.waiting.remove(&key);
            }
        }
        if edge.parcels == 0 {
            self.open.remove(&key);
        }
    }

    /// Whether anything is in flight or waits.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty() && self.waiting.is_empty()
    }
}

/// A quick hash of small numbers; nothing is ever listed in its order.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 29;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_bounds_what_is_in_flight_and_order_is_kept() {
        let mut edges = Edges::new([100, 0, 0, 0]);
        let parcel = |bytes, since| Parcel { kind: Kind::Pixels, step: 0, index: 0, from: 1, to: 2, bytes, since };
        assert!(edges.send(parcel(60, 0.0)));
        assert!(!edges.send(parcel(50, 1.0)));
        // It would fit, and yet comes after the one that waits.
        assert!(!edges.send(parcel(10, 2.0)));
        let mut sent = Vec::new();
        edges.give_back(4.0, Kind::Pixels, 1, 2, 60, &mut sent);
        assert_eq!(sent.iter().map(|parcel| parcel.bytes).collect::<Vec<_>>(), [50, 10]);
        assert_eq!(edges.waited[0], 5.0);
        edges.give_back(4.0, Kind::Pixels, 1, 2, 50, &mut sent);
        edges.give_back(4.0, Kind::Pixels, 1, 2, 10, &mut sent);
        assert!(edges.is_empty() && sent.len() == 2);
    }
}
