//! A rank's share of a micro-batch whose tokens several ranks hold (context parallelism): some tokens of every sample, and
//! all features. In attention heads are exchanged for tokens and back.

use std::rc::Rc;

use tch::Device;

use crate::nn::{Mask, PackedAttention};
use crate::tape::{ContextShard, RowSplit};

/// A rank among those that share tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub rank: usize,
    pub ranks: usize,
}

impl Share {
    /// Returns this rank's tokens of samples that end at `ends` `[0, …, T]`, ascending.
    pub fn tokens(self, ends: &[usize]) -> Vec<i64> {
        RowSplit::new(ends, self.ranks).rows(self.rank)
    }
}

/// The attention of tokens of samples that end at `ends` to each other.
pub(super) enum Samples {
    /// All are here.
    Whole(PackedAttention),
    Shared(Rc<ContextShard>),
}

impl Samples {
    /// Lays out samples that end at `ends`, each attending to all of itself: on this rank whole, or as its share of every
    /// sample.
    pub fn new(ends: &[usize], share: Option<Share>, device: Device) -> Samples {
        match share {
            None => Samples::Whole(PackedAttention::new(ends, Mask::Full, device)),
            Some(Share { rank, ranks }) => {
                Samples::Shared(Rc::new(ContextShard::of_heads(ends, ranks, rank, Mask::Full, device)))
            }
        }
    }

    /// Panics where other ranks have tokens as well.
    pub fn whole(&self) -> &PackedAttention {
        match self {
            Samples::Whole(attention) => attention,
            Samples::Shared(_) => unreachable!("a share of a row attends on the tape"),
        }
    }

    /// Returns this rank's share; `None` where it has the samples whole.
    pub fn shared(&self) -> Option<&Rc<ContextShard>> {
        match self {
            Samples::Whole(_) => None,
            Samples::Shared(row) => Some(row),
        }
    }
}

/// Returns the segments of the tokens `own`, ascending, among those of all tokens, `(tokens, row)` each.
pub(super) fn of_tokens(segments: &[(i64, i64)], own: &[i64]) -> Vec<(i64, i64)> {
    let rows: Vec<i64> = segments.iter().flat_map(|(len, row)| std::iter::repeat_n(*row, *len as usize)).collect();
    let mut found: Vec<(i64, i64)> = Vec::new();
    for row in own.iter().map(|token| rows[*token as usize]) {
        match found.last_mut() {
            Some((len, last)) if *last == row => *len += 1,
            _ => found.push((1, row)),
        }
    }
    found
}
