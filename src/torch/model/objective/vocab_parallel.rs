//! The head on a part of the vocabulary, of which other ranks have the rest: what the cross-entropy needs of its scores,
//! in chunks as in `loss.rs`. No rank ever has all scores of a token.
//!
//! Shapes: L counted targets, D hidden size, V the part's entries, C a chunk's.

use tch::{Kind, Tensor};

use super::linear_cross_entropy::LinearCrossEntropy;
use super::score_passes::places;
use crate::tape::{Custom, Needs, ParamGrads};

/// Reads hidden states `[L, D]`; writes the logarithms of the sums of exponentials over this part, and the labels' scores,
/// 0 of those that are elsewhere, or with smoothing this part's addend to the mean score by the smoothed label; `[L]` each,
/// float32.
pub struct VocabScores(LinearCrossEntropy);

impl VocabScores {
    /// The labels of `scores` are int64 and count from the part's begin; its scale is not used.
    pub fn new(scores: LinearCrossEntropy) -> VocabScores {
        VocabScores(scores)
    }
}

impl Custom for VocabScores {
    fn forward(&self, reads: &[Tensor], needs: Option<&Needs>) -> (Vec<Tensor>, Vec<Tensor>) {
        let (norm_L, label_score_L, kept) = self.0.scan(&reads[0], needs.is_some());
        let mut saved = Vec::new();
        if needs.is_some() {
            saved.extend([reads[0].shallow_clone(), norm_L.shallow_clone()]);
            saved.extend(kept);
        }
        (vec![norm_L, label_score_L], saved)
    }

    fn backward(
        &self,
        saved: Vec<Tensor>,
        grads: &[Option<Tensor>],
        needs: &Needs,
        params: Option<&ParamGrads<'_>>,
    ) -> Vec<Option<Tensor>> {
        let loss = &self.0;
        let of_output = |index: usize| grads[index].as_ref().map(|gradient| gradient.unsqueeze(1));
        let (of_norm_L1, of_label_L1) = (of_output(0), of_output(1));
        loss.differentiate(saved, needs, params, |scores_LC, norm_L, chunk| {
            let kind = scores_LC.kind();
            let mut of_scores_LC = match &of_norm_L1 {
                Some(of_norm_L1) => (&scores_LC - norm_L.unsqueeze(1)).exp_() * of_norm_L1,
                None => scores_LC.to_kind(Kind::Float).zeros_like(),
            };
            if let Some(of_label_L1) = &of_label_L1 {
                let (at_L1, here_L1) = places(loss.labels(), chunk);
                of_scores_LC = match loss.smoothing() {
                    None => of_scores_LC.scatter_add_(1, &at_L1, &(here_L1 * of_label_L1)),
                    Some(smoothing) => smoothing.taken_from(of_scores_LC, &(at_L1, here_L1), Some(&-of_label_L1)),
                };
            }
            of_scores_LC.to_kind(kind)
        })
    }
}
