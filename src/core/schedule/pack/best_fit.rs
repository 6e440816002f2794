//! Best fit decreasing by multiplicity: what is alike is placed at once, so that the work depends on how many sizes
//! there are and not on how many samples.

use super::free_space_index::FreeSpaceIndex;
use super::limits::{Load, PackLimits, SampleSize};
use std::cmp::Reverse;

/// Samples of one size: `num_packs` packs from `first_pack` take `per_pack` of them each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub first_pack: u32,
    pub num_packs: u32,
    pub per_pack: u32,
}

#[derive(Debug, Default)]
pub(super) struct BestFit {
    /// The runs of each kind, in the order in which its samples are to be handed out.
    pub runs: Vec<Vec<Run>>,
    /// Tokens of each pack, runs of equal ones together: `(tokens, num_packs)`.
    pub packs: Vec<(u32, u32)>,
}

/// Packs that hold the same.
struct Group {
    num_packs: u32,
    load: Load,
    /// Last entry of its content in `Packer::contents`.
    content: u32,
}

/// `per_pack` samples of a kind, on top of another content.
struct Content {
    below: u32,
    kind: u32,
    per_pack: u32,
}

const EMPTY: u32 = u32::MAX;

struct Packer {
    limits: PackLimits,
    groups: Vec<Group>,
    contents: Vec<Content>,
    index: FreeSpaceIndex,
}

/// Packs `count` samples of each size, every one of which fits a pack by itself.
///
/// It makes what best fit decreasing makes sample by sample. While a sample's best pack has room for a second
/// one of its size, that pack stays the best; so each pack takes as many as it can, and equal packs take the same.
pub(super) fn best_fit_decreasing(kinds: &[(SampleSize, u64)], limits: PackLimits) -> BestFit {
    let mut order: Vec<usize> = (0..kinds.len()).collect();
    order.sort_unstable_by_key(|&kind| Reverse(kinds[kind].0));
    let index = FreeSpaceIndex::new(limits);
    let mut packer = Packer { limits, groups: Vec::new(), contents: Vec::new(), index };
    for kind in order {
        let (size, mut count) = kinds[kind];
        while count > 0 {
            count -= packer.place(kind as u32, size, count);
        }
    }
    packer.into_runs(kinds.len())
}

impl Packer {
    /// Places some of `count` samples, at least one; how many.
    fn place(&mut self, kind: u32, size: SampleSize, count: u64) -> u64 {
        let best = self.index.best_fit(size);
        let (load, available, below) = match best {
            Some(id) => {
                let group = &self.groups[id as usize];
                (group.load, u64::from(group.num_packs), group.content)
            }
            None => (Load::default(), u64::MAX, EMPTY),
        };
        let per_pack = self.capacity(&load, size).min(count);
        let num_packs = available.min(count / per_pack).min(u64::from(u32::MAX));
        if let Some(id) = best {
            let group = &mut self.groups[id as usize];
            group.num_packs -= num_packs as u32;
            if group.num_packs == 0 {
                self.index.remove(id, &load);
            }
        }
        let content = self.contents.len() as u32;
        self.contents.push(Content { below, kind, per_pack: per_pack as u32 });
        let load = load.with_copies(size, per_pack as usize);
        self.index.insert(self.groups.len() as u32, &load);
        self.groups.push(Group { num_packs: num_packs as u32, load, content });
        per_pack * num_packs
    }

    /// Samples of one size for which there is room.
    fn capacity(&self, load: &Load, size: SampleSize) -> u64 {
        let limits = &self.limits;
        let of = [
            (limits.max_tokens, load.tokens, size.tokens),
            (limits.max_images, load.images, size.images),
            (limits.max_visual_tokens, load.visual_tokens, size.visual_tokens),
            (limits.max_samples.max(1), load.samples, 1),
        ];
        let times = of.iter().map(|&(limit, used, need)| (limit - used).checked_div(need as usize));
        times.flatten().min().expect("a sample counts as one").min(u32::MAX as usize) as u64
    }

    fn into_runs(self, num_kinds: usize) -> BestFit {
        let mut found = BestFit { runs: vec![Vec::new(); num_kinds], packs: Vec::new() };
        let mut first_pack = 0;
        for group in self.groups.iter().filter(|group| group.num_packs > 0) {
            let mut at = group.content;
            while at != EMPTY {
                let content = &self.contents[at as usize];
                let run = Run { first_pack, num_packs: group.num_packs, per_pack: content.per_pack };
                found.runs[content.kind as usize].push(run);
                at = content.below;
            }
            found.packs.push((group.load.tokens as u32, group.num_packs));
            first_pack += group.num_packs;
        }
        found
    }
}
