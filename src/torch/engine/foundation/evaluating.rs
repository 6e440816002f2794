//! Holds what an evaluation has come to on a rank.

use loongforge_core::message::{EvaluationReport, Purpose, SampleId};
use tch::Tensor;

/// Holds what an evaluation has come to on this rank.
pub(super) struct Evaluating {
    pub(super) purpose: Purpose,
    /// Sum of the cross-entropies and number of predicted targets, on the device, and whether the model says the latter.
    pub(super) scores: Option<[Tensor; 2]>,
    pub(super) is_silent: bool,
    pub(super) num_targets: u64,
    pub(super) outputs: Vec<(SampleId, Vec<i64>)>,
    /// Packs that are to be continued, those of other replicas included that this rank takes part in, and that were.
    pub(super) num_to_continue: usize,
    pub(super) num_continued: usize,
}

impl Evaluating {
    /// `num_packs`: those that are continued where continuations are asked for.
    pub fn of(purpose: Purpose, num_packs: usize) -> Option<Self> {
        let num_to_continue = if matches!(purpose, Purpose::Generate { .. }) { num_packs } else { 0 };
        let (scores, outputs, is_silent, num_targets, num_continued) = (None, Vec::new(), false, 0, 0);
        let new = Self { purpose, scores, is_silent, num_targets, outputs, num_to_continue, num_continued };
        purpose.is_evaluation().then_some(new)
    }

    /// The most tokens of a continuation, where packs are continued.
    pub fn generates(&self) -> Option<u32> {
        match self.purpose {
            Purpose::Generate { max_new_tokens } => Some(max_new_tokens),
            Purpose::Train | Purpose::Score => None,
        }
    }

    /// Returns whether packs are still to be continued.
    pub fn has_left(&self) -> bool {
        self.num_continued < self.num_to_continue
    }

    pub fn report(&mut self) -> EvaluationReport {
        let [loss_sum, correct] = self.scores.take().map_or([0.0; 2], |scores| scores.map(|sum| sum.double_value(&[])));
        EvaluationReport {
            loss_sum,
            num_targets: self.num_targets,
            num_correct: (!self.is_silent).then_some(correct as u64),
            outputs: std::mem::take(&mut self.outputs),
        }
    }
}
