//! The interface that the transformers of diffusion models have in common.

use std::ops::Range;

use loongforge_core::message::ItemMeta;
use tch::Kind;

use super::sample::Sample;
use super::share::Share;
use crate::model::batch::SampleRow;
use crate::params::ParallelRank;
use crate::tape::{Policy, Slot, Tape};

/// The samples of a micro-batch, with what all parts of a transformer know of them.
pub(super) struct Work<'a> {
    pub samples: &'a [Sample],
    /// The noise level of each.
    pub sigma: &'a [f64],
    /// Rows of text, and tokens of pictures, of all samples.
    pub num_text: i64,
    pub num_pictures: i64,
    pub policy: Policy,
    /// The share of this rank, where other ranks have tokens of these samples as well.
    pub share: Option<Share>,
}

/// The inputs of a transformer from a micro-batch.
pub(super) struct Latents {
    /// The noised latents of all samples' targets, end to end: `[T, P]`.
    pub noised: Slot,
    /// All clean latents; `None`: there are none.
    pub clean: Option<Slot>,
    /// Rows of text.
    pub text: Option<Slot>,
    /// Tokens of pictures.
    pub pictures: Option<Slot>,
}

/// A stream that goes from one stage of blocks to the next.
pub(super) struct Stream {
    pub shape: Vec<i64>,
    pub kind: Kind,
}

/// The values that a stage begins with.
pub(super) enum Begin {
    Latents(Latents),
    /// The streams of the stage before.
    Streams(Vec<Slot>),
}

/// A transformer that tells the velocity of noised latents, or a stage of its blocks.
pub(super) trait Network {
    /// Returns the tokens of a sample's target that it makes, and that count in the loss.
    fn counted(&self, sample: &Sample) -> Range<i64>;

    /// Returns whether the first of a sample's latents is its target, of a sample that may come without.
    fn has_target(&self, row: &SampleRow, latents: &[ItemMeta]) -> bool;

    /// Returns the tokens of all samples' targets that this rank computes, ascending; `None`: all of them.
    fn own_targets(&self, work: &Work<'_>) -> Option<Vec<i64>>;

    /// This rank's rows of each stream of tokens among those of all ranks, where these share the tokens; none where all are here.
    fn own_rows(&self, work: &Work<'_>) -> Vec<Vec<i64>>;

    /// Returns the streams between blocks.
    fn streams(&self, work: &Work<'_>) -> Vec<Stream>;

    /// Records the streams behind its blocks; of the last stage the velocity `[T, P]` of samples' targets alone,
    /// of this rank's tokens.
    fn record(&self, tape: &mut Tape, work: &Work<'_>, begin: Begin) -> Vec<Slot>;
}

/// The exchanges among ranks that share blocks.
#[derive(Clone, Copy)]
pub(super) struct Regions(bool);

impl Regions {
    /// Shares the heads among ranks where `place` has more than one of tensor parallelism.
    pub fn new(place: &ParallelRank) -> Regions {
        Regions(place.tp > 1)
    }

    /// Returns whether blocks are split.
    pub fn are_split(self) -> bool {
        self.0
    }

    /// Into a rank's part of a block.
    pub fn enter(self, tape: &mut Tape, x: Slot) -> Slot {
        if self.0 { tape.copy_to_region(x) } else { x }
    }

    /// Records the way out of a region: the sum of the ranks' parts.
    pub fn leave(self, tape: &mut Tape, y: Slot) -> Slot {
        if self.0 { tape.reduce_from_region(y) } else { y }
    }

    /// Records the sum of what ranks have, for all of their parts.
    pub fn sum_within(self, tape: &mut Tape, x: Slot) -> Slot {
        let sum = tape.reduce_from_region(x);
        tape.copy_to_region(sum)
    }

    /// With `alike`, records that all ranks compute what follows alike, outside of their parts.
    pub fn set_alike(self, tape: &mut Tape, alike: bool) {
        tape.set_alike(alike && self.0);
    }
}
