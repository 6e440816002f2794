//! When a run writes checkpoints by itself: what is asked here by the rules of a config, by the scheduler, and by what is said of a
//! run that has ended.

use serde::{Deserialize, Serialize};

use super::{Checkpoint, RunConfig};

/// Says after which steps a run writes checkpoints by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavePoints {
    /// After every so many steps; 0: only at the end.
    pub every_steps: u64,
    /// After the last step, whatever its number.
    pub at_end: bool,
}

impl SavePoints {
    /// Returns whether the run writes any checkpoint.
    pub fn any(self) -> bool {
        self.at_end || self.every_steps > 0
    }

    /// Returns whether `num_steps` steps are a multiple of those after which one is written.
    pub fn is_due(self, num_steps: u64) -> bool {
        self.every_steps > 0 && num_steps.is_multiple_of(self.every_steps)
    }

    /// Returns whether the step that the run ends with is saved, whatever its number: a run that is stopped is to be resumed there,
    /// unless it writes no checkpoints at all.
    pub fn saves_last(self, is_stopped: bool) -> bool {
        if is_stopped { self.any() } else { self.at_end }
    }
}

impl Checkpoint {
    /// Returns after which steps the run writes checkpoints by itself.
    pub fn save_points(&self) -> SavePoints {
        SavePoints { every_steps: self.every_steps, at_end: self.at_end }
    }
}

impl RunConfig {
    /// Returns what of a run is not saved, in a line; `None` where its last step is.
    pub fn unsaved(&self) -> Option<String> {
        let points = self.checkpoint.save_points();
        if points.at_end {
            return None;
        }
        if !points.any() {
            return Some(
                "no checkpoint is written: checkpoint.at_end is false, and checkpoint.every_steps is 0".to_owned(),
            );
        }
        // Of epochs that nobody has counted the steps of yet, nothing is known.
        let steps = self.train.steps.filter(|steps| !points.is_due(*steps))?;
        let every = points.every_steps;
        Some(format!(
            "the last {} of {steps} steps are in no checkpoint: checkpoint.at_end is false, and checkpoint.every_steps is {every}",
            steps % every
        ))
    }
}
