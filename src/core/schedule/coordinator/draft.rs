//! A checkpoint that is not yet published.

use super::SchedulerState;
use crate::message::{SaveTo, SavedFile, StepId};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A checkpoint whose files are written but not yet visible.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointDraft {
    /// The last step in it: a resumed run starts with the next one.
    pub step: StepId,
    pub to: SaveTo,
    /// The folder with the files, to be renamed.
    pub dir: PathBuf,
    /// The scheduler state with which a resumed run starts.
    pub state: SchedulerState,
    pub files: Vec<SavedFile>,
}
