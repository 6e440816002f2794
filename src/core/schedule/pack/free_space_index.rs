//! Finds the best fit for a sample: the pack with the least remaining tokens that has room for all of it.

use super::limits::{Load, PackLimits, SampleSize};

/// Room for images, visual tokens and samples.
type FreeSpace = [u32; 3];

/// Entries by their room for tokens; above them a tree of the largest other room of each range.
#[derive(Debug)]
pub(super) struct FreeSpaceIndex {
    limits: PackLimits,
    /// Entries of each number of free tokens, with their other room.
    entries: Vec<Vec<(u32, FreeSpace)>>,
    /// Largest other room under a node; the leaves begin at `num_leaves`. Nothing has room for no sample.
    most: Vec<FreeSpace>,
    num_leaves: usize,
}

impl FreeSpaceIndex {
    /// Makes an index without packs, whose tokens are at most those of `limits`.
    pub fn new(limits: PackLimits) -> Self {
        let num_leaves = (limits.max_tokens + 1).next_power_of_two();
        let entries = vec![Vec::new(); limits.max_tokens + 1];
        Self { limits, entries, most: vec![[0; 3]; 2 * num_leaves], num_leaves }
    }

    /// Adds a pack that holds `load`.
    pub fn insert(&mut self, id: u32, load: &Load) {
        let (tokens, room) = self.room(load);
        self.entries[tokens].push((id, room));
        let leaf = self.num_leaves + tokens;
        self.set(leaf, larger(self.most[leaf], room));
    }

    /// Takes a pack out that was added with this load. Panics where there is none.
    pub fn remove(&mut self, id: u32, load: &Load) {
        let tokens = self.limits.max_tokens - load.tokens;
        let entries = &mut self.entries[tokens];
        // It is one of the last, for those are found first.
        let at = entries.iter().rposition(|(other, _)| *other == id).expect("it was inserted");
        entries.remove(at);
        let leaf = self.num_leaves + tokens;
        let before = self.most[leaf];
        let mut most = [0; 3];
        for (_, room) in entries.iter().rev() {
            most = larger(most, *room);
            if most == before {
                return;
            }
        }
        self.set(leaf, most);
    }

    /// Returns the entry with the least remaining tokens that has room for one such sample; of several, the last inserted.
    pub fn best_fit(&self, size: SampleSize) -> Option<u32> {
        self.search(1, self.num_leaves, 0, size.tokens as usize, [size.images, size.visual_tokens, 1])
    }

    /// Searches below `node`, which spans `width` leaves from `start`; not before `from`.
    fn search(&self, node: usize, width: usize, start: usize, from: usize, need: FreeSpace) -> Option<u32> {
        if start + width <= from || !has(&self.most[node], &need) {
            return None;
        }
        if width == 1 {
            return self.entries[start].iter().rev().find(|(_, room)| has(room, &need)).map(|(id, _)| *id);
        }
        let half = width / 2;
        self.search(2 * node, half, start, from, need)
            .or_else(|| self.search(2 * node + 1, half, start + half, from, need))
    }

    fn room(&self, load: &Load) -> (usize, FreeSpace) {
        let left = |limit: usize, used: usize| (limit - used).min(u32::MAX as usize) as u32;
        let limits = &self.limits;
        let room = [
            left(limits.max_images, load.images),
            left(limits.max_visual_tokens, load.visual_tokens),
            left(limits.max_samples.max(1), load.samples),
        ];
        (limits.max_tokens - load.tokens, room)
    }

    fn set(&mut self, mut node: usize, mut most: FreeSpace) {
        while self.most[node] != most {
            self.most[node] = most;
            if node == 1 {
                return;
            }
            node /= 2;
            most = larger(self.most[2 * node], self.most[2 * node + 1]);
        }
    }
}

fn has(room: &FreeSpace, need: &FreeSpace) -> bool {
    room.iter().zip(need).all(|(room, need)| room >= need)
}

fn larger(one: FreeSpace, other: FreeSpace) -> FreeSpace {
    std::array::from_fn(|at| one[at].max(other[at]))
}
