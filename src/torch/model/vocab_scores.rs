//! The head on a part of the vocabulary, of which other ranks have the rest: what the cross-entropy needs of its scores,
//! in chunks as in `loss.rs`. No rank ever has all scores of a token.
//!
//! Shapes: L counted targets, D hidden size, V the part's entries, C a chunk's.

use tch::{Kind, Tensor};

use super::loss::{LinearCrossEntropy, places};
use crate::native::add_product;
use crate::tape::{Custom, Needs, ParamGrads};

/// Reads hidden states `[L, D]`; writes the logarithms of the sums of exponentials over this part, and the labels' scores,
/// 0 of those that are elsewhere; `[L]` each, float32.
pub struct VocabScores(LinearCrossEntropy);

impl VocabScores {
    /// `labels_L` are int64 and count from the whole vocabulary's begin, the part from `first` on.
    pub fn new(head_VD: Tensor, labels_L: &Tensor, first: i64) -> VocabScores {
        VocabScores(LinearCrossEntropy::new(head_VD, labels_L - first, 1.0))
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
        let mut saved = saved.into_iter();
        let [hidden_LD, norm_L] = [(); 2].map(|()| saved.next().expect("the forward saved hidden states and norms"));
        let of_output = |index: usize| match &grads[index] {
            Some(gradient) => gradient.unsqueeze(1),
            None => norm_L.zeros_like().unsqueeze(1),
        };
        let (of_norm_L1, of_label_L1) = (of_output(0), of_output(1));
        let float = (Kind::Float, hidden_LD.device());
        let of_hidden = needs.reads[0].then(|| Tensor::zeros(hidden_LD.size(), float));
        for chunk in loss.chunks() {
            let scores_LC = saved.next().unwrap_or_else(|| loss.scores(&hidden_LD, &chunk));
            let (at_L1, here_L1) = places(loss.labels(), &chunk);
            let mut of_scores_LC = (scores_LC.to_kind(Kind::Float) - norm_L.unsqueeze(1)).exp_() * &of_norm_L1;
            let of_scores_LC =
                of_scores_LC.scatter_add_(1, &at_L1, &(here_L1 * &of_label_L1)).to_kind(hidden_LD.kind());
            if let Some(of_hidden) = &of_hidden {
                add_product(of_hidden, &of_scores_LC, false, &loss.head(&chunk));
            }
            if let Some(params) = params {
                let of_head = params.sum(0).narrow(0, chunk.start, chunk.end - chunk.start);
                add_product(&of_head, &of_scores_LC, true, &hidden_LD);
            }
        }
        vec![of_hidden.map(|of_hidden| of_hidden.to_kind(hidden_LD.kind()))]
    }
}
