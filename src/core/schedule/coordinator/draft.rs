//! A checkpoint that is to be published.

use super::SchedulerState;
use crate::message::{SaveTo, SavedFile, StepId};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A checkpoint whose files are written but which nobody may see yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointDraft {
    /// The last step that is in it: a resumed run begins with the one after.
    pub step: StepId,
    pub to: SaveTo,
    /// The folder that the files are in, to be renamed.
    pub dir: PathBuf,
    /// Holds what a resumed run's scheduler begins with.
    pub state: SchedulerState,
    pub files: Vec<SavedFile>,
}
