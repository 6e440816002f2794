//! Label smoothing of the cross-entropy (Szegedy et al. 2016), as torch's `cross_entropy(label_smoothing)` and transformers'
//! `LabelSmoother` define it: the target is no longer the label alone, but a share of it is spread evenly over the vocabulary,
//! the label included.
//!
//! Shapes: L counted targets, C entries of a chunk of the vocabulary.

use tch::Tensor;

/// The share of the target that is spread over the vocabulary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Smoothing {
    /// The share that is spread, in (0, 1).
    share: f64,
    /// The part of that share that each entry of the whole vocabulary gets, whatever part of the vocabulary a rank has.
    each: f64,
}

impl Smoothing {
    /// Makes the smoothing that spreads `share` of a target over the `vocab_size` entries of the whole vocabulary; `None` for a share of
    /// 0.
    pub fn new(share: f64, vocab_size: i64) -> Option<Smoothing> {
        (share > 0.0).then(|| Smoothing { share, each: share / vocab_size as f64 })
    }

    /// Returns the mean score by the smoothed label `[L]`, or a part's addend to it: of the label's score, and the sum of the part's
    /// scores.
    pub(super) fn mean(&self, label_score_L: &Tensor, sum_L: &Tensor) -> Tensor {
        label_score_L * (1.0 - self.share) + sum_L * self.each
    }

    /// Returns `of_scores` `[L, C]` without the smoothed label's probabilities, each row's times `factor` `[L, 1]`: `at`, where the label
    /// is in the chunk, and whether it is there, `[L, 1]` both.
    pub(super) fn taken_from(&self, of_scores: Tensor, at: &(Tensor, Tensor), factor: Option<&Tensor>) -> Tensor {
        let (at_L1, here_L1) = at;
        let (label_L1, mut of_scores_LC) = match factor {
            Some(factor) => (here_L1 * factor, of_scores - factor * self.each),
            None => (here_L1.shallow_clone(), of_scores - self.each),
        };
        of_scores_LC.scatter_add_(1, at_L1, &(label_L1 * (self.share - 1.0)))
    }
}
