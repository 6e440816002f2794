//! The results of an evaluation on a rank.

use crate::model::NoisePurpose;
use loongforge_core::message::{EvaluationReport, Purpose, SampleId};
use tch::Tensor;

/// The results of an evaluation on this rank.
pub(super) struct Evaluating {
    pub(super) purpose: Purpose,
    /// Sum of the losses and number of predicted targets, on the device, and whether the model says the latter.
    pub(super) scores: Option<[Tensor; 2]>,
    pub(super) is_silent: bool,
    pub(super) num_targets: u64,
    outputs: Vec<(SampleId, Vec<i64>)>,
    /// Pictures and clips that were made, as files.
    made: Vec<(SampleId, String)>,
    /// Actions that were predicted.
    acted: Vec<(SampleId, Vec<f32>)>,
    /// The number of packs that are to be continued or whose samples are to be made, those of other replicas included that this rank
    /// takes part in, and the number of those that are done.
    num_to_continue: usize,
    pub(super) num_continued: usize,
}

impl Evaluating {
    /// `num_packs`: those that are continued, or whose samples are made, where that is asked for.
    pub fn of(purpose: Purpose, num_packs: usize) -> Option<Self> {
        let num_to_continue = if one_by_one(purpose) { num_packs } else { 0 };
        let (scores, outputs, made, is_silent, num_targets, num_continued) =
            (None, Vec::new(), Vec::new(), false, 0, 0);
        let acted = Vec::new();
        let new =
            Self { purpose, scores, is_silent, num_targets, outputs, made, acted, num_to_continue, num_continued };
        purpose.is_evaluation().then_some(new)
    }

    /// Returns the purpose of its samples' noise.
    pub fn noise(&self) -> NoisePurpose {
        match self.purpose {
            Purpose::Score { draw } | Purpose::Sample { draw } | Purpose::Act { draw } => {
                NoisePurpose::Evaluation(draw)
            }
            Purpose::Train | Purpose::Generate { .. } => NoisePurpose::Evaluation(0),
        }
    }

    /// Returns whether packs are still to be done one after the other.
    pub fn has_left(&self) -> bool {
        self.num_continued < self.num_to_continue
    }

    /// Adds what one of the packs that are done one after the other has come to.
    pub fn add(&mut self, done: Done) {
        self.num_continued += 1;
        match done {
            Done::Continued(outputs) => self.outputs.extend(outputs),
            Done::Made(files) => self.made.extend(files),
            Done::Acted(actions) => self.acted.extend(actions),
        }
    }

    /// Returns the results of the evaluation. Reading it waits for the device.
    pub fn report(&mut self) -> EvaluationReport {
        let [loss_sum, correct] = self.scores.take().map_or([0.0; 2], |scores| scores.map(|sum| sum.double_value(&[])));
        EvaluationReport {
            loss_sum,
            num_targets: self.num_targets,
            num_correct: (!self.is_silent).then_some(correct as u64),
            outputs: std::mem::take(&mut self.outputs),
            made: std::mem::take(&mut self.made),
            acted: std::mem::take(&mut self.acted),
        }
    }
}

/// Holds the outputs of one pack, by sample.
pub(super) enum Done {
    /// The tokens that follow a prompt.
    Continued(Vec<(SampleId, Vec<i64>)>),
    /// The names of files with pictures or clips.
    Made(Vec<(SampleId, String)>),
    /// Normalized actions, one after the other.
    Acted(Vec<(SampleId, Vec<f32>)>),
}

/// Returns whether packs are done one after the other, and not by the schedule of a step.
pub(super) fn one_by_one(purpose: Purpose) -> bool {
    matches!(purpose, Purpose::Generate { .. } | Purpose::Sample { .. } | Purpose::Act { .. })
}
