//! Next-token cross-entropy of the states of counted tokens, with the head that scores them: whole, or sharded over the
//! vocabulary among the tensor-parallel ranks (Megatron's vocab-parallel cross-entropy).
//!
//! Shapes: L counted targets, D hidden size, V the vocabulary's entries or a rank's part of them.

use std::rc::Rc;

use tch::{Device, Kind, Tensor};

use super::linear_cross_entropy::LinearCrossEntropy;
use super::smoothing::Smoothing;
use super::target_scores::{part_best, predicted, target_scores};
use super::vocab_parallel::VocabScores;
use crate::device::upload;
use crate::params::{ParallelRank, ParamId};
use crate::tape::{Policy, Slot, Tape};

/// The head of a decoder, or a rank's part of it.
pub struct CrossEntropy {
    /// `[V, D]`.
    pub head: Tensor,
    /// `[V]`.
    pub bias: Option<Tensor>,
    /// The parameters of both.
    pub ids: Vec<ParamId>,
    /// The token of the head's first row.
    pub first_token: i64,
    /// Divides the scores.
    pub divisor: Option<f64>,
    /// Scores s become `cap · tanh(s / cap)`.
    pub soft_cap: Option<f64>,
    /// The smoothing of the labels of [`CrossEntropy::record`]; scores and log-probabilities are those of the labels themselves.
    pub smoothing: Option<Smoothing>,
    pub parallel: ParallelRank,
    pub device: Device,
}

impl CrossEntropy {
    /// Records the sum over `labels` of the cross-entropies of `hidden` `[L, D]`, which is in a region, each times its weight where there
    /// are `weights` `[L]`, times `scale`: a float64 scalar.
    pub fn record(
        &self,
        tape: &mut Tape,
        name: &str,
        hidden: Slot,
        labels: &[i64],
        weights: Option<Vec<f32>>,
        scale: f64,
    ) -> Slot {
        if let Some(weights) = weights {
            let [norm, of_labels] = self.record_parts(tape, name, hidden, labels, self.smoothing);
            let weights_L = Rc::new(upload(&Tensor::from_slice(&weights), self.device));
            let sum = move |reads: &[Tensor]| vec![((&reads[0] - &reads[1]) * &*weights_L).sum(Kind::Double) * scale];
            return tape.run(name, &[], Policy::Keep, &[norm, of_labels], 1, sum)[0];
        }
        if self.parallel.tp == 1 {
            let loss = self.linear(self.labels(labels), scale).with_smoothing(self.smoothing);
            return tape.custom(name, &self.ids, &[hidden], 1, Box::new(loss))[0];
        }
        let [norm, of_labels] = self.record_parts(tape, name, hidden, labels, self.smoothing);
        let sum = move |reads: &[Tensor]| vec![(&reads[0] - &reads[1]).sum(Kind::Double) * scale];
        tape.run(name, &[], Policy::Keep, &[norm, of_labels], 1, sum)[0]
    }

    /// Works like [`CrossEntropy::record`], with the cross-entropy of each of `labels`: `[L]`, float32.
    pub fn record_each(&self, tape: &mut Tape, name: &str, hidden: Slot, labels: &[i64]) -> Slot {
        let [norm, of_labels] = self.record_parts(tape, name, hidden, labels, None);
        let each = move |reads: &[Tensor]| vec![&reads[0] - &reads[1]];
        tape.run(name, &[], Policy::Keep, &[norm, of_labels], 1, each)[0]
    }

    /// Records the logarithms of the sums of exponentials of the scores, and the scores of `labels`, or their means by smoothed labels;
    /// `[L]` each, float32.
    fn record_parts(
        &self,
        tape: &mut Tape,
        name: &str,
        hidden: Slot,
        labels: &[i64],
        smoothing: Option<Smoothing>,
    ) -> [Slot; 2] {
        let scores = self.linear(self.labels(labels) - self.first_token, 1.0).with_smoothing(smoothing);
        let scores = VocabScores::new(scores);
        let scores = tape.custom(format!("{name} scores"), &self.ids, &[hidden], 2, Box::new(scores));
        match self.parallel.tp {
            1 => [scores[0], scores[1]],
            _ => [tape.log_sum_exp(scores[0]), tape.reduce_from_region(scores[1])],
        }
    }

    /// Records, for an evaluation, the sum of the cross-entropies, and at each target the entry with the highest score `[L]`, int64; both
    /// are in kept slots.
    pub fn record_scores(&self, tape: &mut Tape, hidden: Slot, labels: &[i64]) -> [Slot; 2] {
        let scores = self.linear(self.labels(labels), 1.0);
        let ParallelRank { tp, tp_rank, .. } = self.parallel;
        let slots = if tp == 1 {
            let slots = tape.custom("scores", &self.ids, &[hidden], 2, target_scores(scores));
            [slots[0], slots[1]]
        } else {
            let each = self.record_each(tape, "loss", hidden, labels);
            let sum = |reads: &[Tensor]| vec![reads[0].sum(Kind::Double)];
            let loss = tape.run("loss", &[], Policy::Keep, &[each], 1, sum)[0];
            let best = part_best(scores, self.first_token, tp_rank, tp);
            let best = tape.custom("best", &self.ids, &[hidden], 1, best)[0];
            let all = tape.reduce_from_region(best);
            let choose = move |reads: &[Tensor]| vec![predicted(&reads[0], tp)];
            [loss, tape.run("predicted", &[], Policy::Keep, &[all], 1, choose)[0]]
        };
        slots.iter().for_each(|slot| tape.keep(*slot));
        slots
    }

    /// Returns the cross-entropy of each of `labels`, `[L]`, float32, by the states `hidden_LD`, and the entry with the highest score
    /// there, `[L]`, int64; without a tape, with the whole vocabulary.
    pub fn of_each(&self, hidden_LD: &Tensor, labels: &[i64]) -> (Tensor, Tensor) {
        self.linear(self.labels(labels), 1.0).of_each(hidden_LD)
    }

    fn labels(&self, labels: &[i64]) -> Tensor {
        upload(&Tensor::from_slice(labels).to_kind(Kind::Int64), self.device)
    }

    fn linear(&self, labels: Tensor, scale: f64) -> LinearCrossEntropy {
        let (head, bias) = (self.head.shallow_clone(), self.bias.as_ref().map(Tensor::shallow_clone));
        LinearCrossEntropy::new(head, bias, labels, scale).with_divisor(self.divisor).with_soft_cap(self.soft_cap)
    }
}
