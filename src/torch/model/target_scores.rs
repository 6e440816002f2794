//! Describes what an evaluation reads of the last hidden states: the sum of the targets' cross-entropies, and how many
//! of the targets are the entry with the highest score. Forward only.
//!
//! Shapes: L counted targets, D hidden size, V the vocabulary's entries or a rank's part of them, W ranks.

use tch::{Kind, Tensor};

use super::loss::LinearCrossEntropy;
use crate::tape::{Custom, Needs, ParamGrads};

/// Reads hidden states `[L, D]`; writes the sum of the cross-entropies, a float64 scalar, and the number of targets that are
/// predicted, an int64 scalar.
pub struct TargetScores(pub LinearCrossEntropy);

impl Custom for TargetScores {
    fn forward(&self, reads: &[Tensor], _: Option<&Needs>) -> (Vec<Tensor>, Vec<Tensor>) {
        let (losses_L, right_L) = self.0.of_each(&reads[0]);
        (vec![losses_L.sum(Kind::Double), right_L.sum(Kind::Int64)], Vec::new())
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

/// The highest score of each token in this rank's part of the vocabulary. Reads hidden states `[L, D]`; writes `[L, 2W]`,
/// float64: in column `rank` the score, in column `W + rank` its entry, counted from the whole vocabulary's begin; 0 elsewhere,
/// so that the sum over ranks holds all.
pub struct PartBest {
    pub scores: LinearCrossEntropy,
    /// The part's first entry.
    pub first: i64,
    pub rank: usize,
    pub world: usize,
}

impl Custom for PartBest {
    fn forward(&self, reads: &[Tensor], _: Option<&Needs>) -> (Vec<Tensor>, Vec<Tensor>) {
        let (most_L, best_L) = self.scores.best(&reads[0]);
        let (rank, world) = (self.rank as i64, self.world as i64);
        let all = Tensor::zeros([most_L.numel() as i64, 2 * world], (Kind::Double, most_L.device()));
        all.select(1, rank).copy_(&most_L);
        all.select(1, world + rank).copy_(&(best_L + self.first));
        (vec![all], Vec::new())
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

/// Returns how many targets are predicted, an int64 scalar, by the sum over ranks of what [`PartBest`] writes. Of equal
/// scores the first entry counts.
pub fn num_predicted(all: &Tensor, labels_L: &Tensor, world: usize) -> Tensor {
    let world = world as i64;
    let at_L1 = all.narrow(1, 0, world).argmax(1, true);
    let best_L = all.narrow(1, world, world).gather(1, &at_L1, false).squeeze_dim(1);
    best_L.to_kind(Kind::Int64).eq_tensor(labels_L).sum(Kind::Int64)
}
