//! Determines the cause of steps that are not finite, by computing the last batch again on the same weights.
//!
//! Steps that were planned ahead are computed and dropped first: they are other batches on these weights.

use super::SchedulerState;
use crate::message::{SampleId, StepId};
use crate::schedule::Batch;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The cause, as far as recomputation can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The batch is again not finite, and others are.
    Data,
    /// The batch is now finite: a machine made an error.
    Transient,
    /// Nothing is finite on these weights: the weights, the configuration or a machine are broken.
    Persistent,
}

impl Verdict {
    /// Returns the name in the report about steps that are not finite.
    pub fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Transient => "transient",
            Self::Persistent => "persistent",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Data => "not finite again, while other batches are finite on the same weights: check these samples",
            Self::Transient => "finite when recomputed on the same weights: a hardware error",
            Self::Persistent => "not finite again, and no other batch is finite on these weights",
        })
    }
}

/// The findings about the steps because of which a run ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NonFinite {
    /// The last skipped step.
    pub step: StepId,
    pub samples: Vec<SampleId>,
    pub loss: f64,
    pub grad_norm: f64,
    /// Number of consecutive skipped steps.
    pub num_in_row: usize,
    /// The step that recomputed the batch, with loss and norm; `None`: its samples can no longer be read.
    pub recomputed: Option<(StepId, f64, f64)>,
    /// Number of other batches on the same weights, and how many of them were finite.
    pub num_others: usize,
    pub num_others_finite: usize,
    pub verdict: Verdict,
    /// The step that produced the weights; `None`: the run began with them.
    pub last_applied: Option<StepId>,
}

/// Consecutive steps that were not finite, and what is done once they are too many.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct NonFiniteSteps {
    num_in_row: usize,
    /// Set once too many steps were skipped: the cause is being determined.
    pub probe: Option<Probe>,
    /// The last step applied in this run, or else the one that it is resumed from where no checkpoint is in its folder; and the
    /// position of the stream.
    pub good: Option<(StepId, SchedulerState)>,
}

impl NonFiniteSteps {
    /// Begins without such steps, in a run that can go back to `good`.
    pub fn since(good: Option<(StepId, SchedulerState)>) -> Self {
        Self { good, ..Self::default() }
    }

    /// Counts a step that is applied.
    pub fn finite(&mut self) {
        self.num_in_row = 0;
    }

    /// Counts a step that is skipped, with its loss and gradient norm; after more than `most` in a row a probe of its batch begins.
    pub fn skipped(&mut self, step: StepId, found: (f64, f64), most: usize, batch: impl FnOnce() -> Batch) {
        if let Some(probe) = &mut self.probe {
            return probe.computed(step, found.0, found.1);
        }
        self.num_in_row += 1;
        if self.num_in_row > most {
            self.probe = Some(Probe::new(step, batch(), found, self.num_in_row));
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct Probe {
    pub found: NonFinite,
    pub batch: Batch,
    pub stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) enum Stage {
    /// Steps that were planned ahead are computed and dropped.
    Draining,
    /// Data actors read the samples again.
    Reading,
    Computing(StepId),
    /// The last good checkpoint is written.
    Saving,
}

impl Probe {
    /// Begins with the last of `num_in_row` steps that were not finite: its batch, loss and gradient norm.
    pub fn new(step: StepId, batch: Batch, (loss, grad_norm): (f64, f64), num_in_row: usize) -> Self {
        let mut samples: Vec<SampleId> = batch.samples().map(|sample| sample.id).collect();
        samples.sort_unstable();
        let found = NonFinite {
            step,
            samples,
            loss,
            grad_norm,
            num_in_row,
            recomputed: None,
            num_others: 0,
            num_others_finite: 0,
            verdict: Verdict::Persistent,
            last_applied: None,
        };
        Self { found, batch, stage: Stage::Draining }
    }

    /// Records a step that was computed on the same weights and dropped.
    pub fn computed(&mut self, step: StepId, loss: f64, grad_norm: f64) {
        if self.stage == Stage::Computing(step) {
            self.found.recomputed = Some((step, loss, grad_norm));
        } else {
            self.found.num_others += 1;
            self.found.num_others_finite += usize::from(loss.is_finite() && grad_norm.is_finite());
        }
    }

    /// Decides by the recomputation: a finite result means a transient fault; if other batches are finite, or nothing was
    /// recomputed, the cause is the data; otherwise the fault is persistent.
    pub fn judge(&mut self) {
        let recomputed_is_finite =
            self.found.recomputed.is_some_and(|(_, loss, norm)| loss.is_finite() && norm.is_finite());
        self.found.verdict = match (recomputed_is_finite, self.found.num_others_finite, self.found.recomputed) {
            (true, ..) => Verdict::Transient,
            (false, 1.., _) | (_, _, None) => Verdict::Data,
            _ => Verdict::Persistent,
        };
    }
}
