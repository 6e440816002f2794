//! The steps after which a run writes checkpoints without being asked. The config rules, the scheduler, and messages about a finished run
//! all use it.

use serde::{Deserialize, Serialize};

use super::{Checkpoint, RunConfig};

/// The steps after which a run writes checkpoints without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavePoints {
    /// Every N steps; 0: only at the end.
    pub every_steps: u64,
    /// True if the run saves after the last step, whatever its number.
    pub at_end: bool,
}

impl SavePoints {
    /// Returns whether the run writes any checkpoint.
    pub fn any(self) -> bool {
        self.at_end || self.every_steps > 0
    }

    /// Returns whether a checkpoint is due after `num_steps` steps by `every_steps`.
    pub fn is_due(self, num_steps: u64) -> bool {
        self.every_steps > 0 && num_steps.is_multiple_of(self.every_steps)
    }

    /// Returns whether the run's final step is saved, whatever its number: a stopped run resumes there, unless the run writes no
    /// checkpoints at all.
    pub fn saves_last(self, is_stopped: bool) -> bool {
        if is_stopped { self.any() } else { self.at_end }
    }
}

impl Checkpoint {
    /// Returns the steps after which the run writes checkpoints without being asked.
    pub fn save_points(&self) -> SavePoints {
        SavePoints { every_steps: self.every_steps, at_end: self.at_end }
    }
}

impl RunConfig {
    /// Returns a line about what is not saved of a run; `None` if its last step is saved.
    pub fn unsaved(&self) -> Option<String> {
        let points = self.checkpoint.save_points();
        if points.at_end {
            return None;
        }
        if !points.any() && self.checkpoint.every_epochs.is_none() {
            return Some(
                "no checkpoint is written: checkpoint.at_end is false, and neither checkpoint.every_steps nor \
                 checkpoint.every_epochs is set"
                    .to_owned(),
            );
        }
        // Of epochs that nobody has counted the steps of yet, nothing is known.
        let steps = self.train.steps.filter(|steps| self.train.epochs.is_none() && !points.is_due(*steps))?;
        let every = points.every_steps;
        Some(format!(
            "the last {} of {steps} steps are in no checkpoint: checkpoint.at_end is false, and checkpoint.every_steps is {every}",
            steps % every
        ))
    }
}
