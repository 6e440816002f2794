//! What the transformers of diffusion models have in common.

use std::ops::Range;

use loongforge_core::message::ItemMeta;

use super::sample::Sample;
use crate::model::batch::SampleRow;
use crate::tape::{Policy, Slot, Tape};

/// What a transformer reads of a micro-batch.
pub(super) struct Latents {
    /// The noised latents of all samples' targets, end to end: `[T, P]`.
    pub noised: Slot,
    /// All clean latents; `None`: there are none.
    pub clean: Option<Slot>,
    /// Rows of text, and how many.
    pub text: Option<Slot>,
    pub num_text: i64,
    /// Tokens of pictures.
    pub pictures: Option<Slot>,
}

/// A transformer that tells the velocity of noised latents.
pub(super) trait Network {
    /// Tokens of a sample's target that it makes, and that count in the loss.
    fn counted(&self, sample: &Sample) -> Range<i64>;

    /// Returns whether the first of a sample's latents is its target, of a sample that may come without.
    fn has_target(&self, row: &SampleRow, latents: &[ItemMeta]) -> bool;

    /// Records the velocity `[T, P]` of all samples' targets at noise levels `sigma`, one a sample.
    fn record(&self, tape: &mut Tape, samples: &[Sample], sigma: &[f64], latents: &Latents, policy: Policy) -> Slot;
}
