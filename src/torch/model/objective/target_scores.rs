//! The evaluation of the last hidden states: the sum of the targets' cross-entropies, and the entry with the highest score at each of the
//! targets. Forward only.
//!
//! Shapes: L counted targets, D hidden size, V the vocabulary's entries or a rank's part of them, W ranks.

use tch::{Kind, Tensor};

use super::linear_cross_entropy::LinearCrossEntropy;
use crate::tape::{Custom, Needs, ParamGrads};

/// An operation of an evaluation, from the tensors that it reads to those that it writes.
struct ForwardOnly<F>(F);

impl<F: Fn(&[Tensor]) -> Vec<Tensor>> Custom for ForwardOnly<F> {
    fn forward(&self, reads: &[Tensor], _: Option<&Needs>) -> (Vec<Tensor>, Vec<Tensor>) {
        ((self.0)(reads), Vec::new())
    }

    fn backward(
        &self,
        _: Vec<Tensor>,
        _: &[Option<Tensor>],
        _: &Needs,
        _: Option<&ParamGrads<'_>>,
    ) -> Vec<Option<Tensor>> {
        unreachable!("an evaluation has no backward")
    }
}

/// Returns an operation that reads hidden states `[L, D]` and writes the sum of the cross-entropies, a float64 scalar, and
/// the predicted entries `[L]`, int64.
pub fn target_scores(scores: LinearCrossEntropy) -> Box<dyn Custom> {
    Box::new(ForwardOnly(move |reads: &[Tensor]| {
        let (losses_L, predicted_L) = scores.of_each(&reads[0]);
        vec![losses_L.sum(Kind::Double), predicted_L]
    }))
}

/// Returns an operation that finds the highest score of each token in the part of the vocabulary that begins at `first` and
/// that `rank` of `world` ranks holds. It reads hidden states `[L, D]` and writes `[L, 2W]`, float64: in column `rank` the
/// score, in column `W + rank` its entry, counted from the whole vocabulary's begin; 0 elsewhere, so that the sum over
/// ranks holds all.
pub fn part_best(scores: LinearCrossEntropy, first: i64, rank: usize, world: usize) -> Box<dyn Custom> {
    let (rank, world) = (rank as i64, world as i64);
    Box::new(ForwardOnly(move |reads: &[Tensor]| {
        let (most_L, best_L) = scores.best(&reads[0]);
        let all = Tensor::zeros([most_L.numel() as i64, 2 * world], (Kind::Double, most_L.device()));
        all.select(1, rank).copy_(&most_L);
        all.select(1, world + rank).copy_(&(best_L + first));
        vec![all]
    }))
}

/// Returns the predicted entries `[L]`, int64, by the sum over ranks of what [`part_best`] writes. Where scores are equal, the first
/// entry counts.
pub fn predicted(all: &Tensor, world: usize) -> Tensor {
    let world = world as i64;
    let at_L1 = all.narrow(1, 0, world).argmax(1, true);
    all.narrow(1, world, world).gather(1, &at_L1, false).squeeze_dim(1).to_kind(Kind::Int64)
}
