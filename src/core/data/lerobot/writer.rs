//! Writes a set in the layout of version 3.0.

use std::path::Path;

use super::feature::{Feature, Value};
use crate::data::error::DataError;

/// A set that is being written.
pub struct SetWriter {}

impl SetWriter {
    /// Begins a set in `folder`, which must be new or empty, of `fps` frames a second. `features` are those of the user:
    /// `timestamp`, `frame_index`, `episode_index`, `index` and `task_index` are written too.
    ///
    /// # Errors
    /// The folder holds something or cannot be written, or a feature cannot be stored.
    pub fn create(folder: &Path, fps: u32, robot_type: &str, features: Vec<Feature>) -> Result<Self, DataError> {
        let _ = (fps, robot_type, features);
        Err(DataError::file(folder, "is not written yet"))
    }

    /// Adds a frame to the current episode: a value for every feature, by its key.
    ///
    /// # Errors
    /// A value is missing, of another shape or not finite, or a file cannot be written.
    pub fn add_frame(&mut self, values: &[(&str, Value<'_>)]) -> Result<(), DataError> {
        let _ = values;
        Ok(())
    }

    /// Ends the current episode, in which this was the task.
    ///
    /// # Errors
    /// It has no frames, or a file cannot be written.
    pub fn end_episode(&mut self, task: &str) -> Result<(), DataError> {
        let _ = task;
        Ok(())
    }

    /// Writes what describes the whole set; without it the folder is no set.
    ///
    /// # Errors
    /// There are no episodes, the last one was not ended, or a file cannot be written.
    pub fn finish(self) -> Result<(), DataError> {
        Ok(())
    }
}
