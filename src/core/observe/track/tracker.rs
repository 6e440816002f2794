//! Trackers: a tracker writes a run to a place, such as the files of W&B.

use crate::observe::error::ObserveError;
use serde_json::Value;
use std::borrow::Cow;
use std::path::Path;

/// The description of a run that is written at its beginning.
pub struct TrackedRun<'a> {
    pub name: &'a str,
    /// The run's folder.
    pub dir: &'a Path,
    /// The composed config.
    pub config: &'a Value,
    /// The version of the program.
    pub version: &'a str,
}

/// Says how a run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Completed,
    /// The run was stopped on request and may go on.
    Stopped,
    Failed,
}

/// Names and values of a step.
pub(super) type Scalars<'a> = [(Cow<'a, str>, f64)];

/// A place that a run is written to.
pub(super) trait Tracker {
    /// Writes numbers of a step; `is_whole`: nothing more comes of this step.
    fn scalars(&mut self, step: u64, scalars: &Scalars<'_>, is_whole: bool) -> Result<(), ObserveError>;

    fn table(&mut self, step: u64, key: &str, columns: &[&str], rows: &[Vec<String>]) -> Result<(), ObserveError>;

    /// Writes a picture; `size`: its width and height.
    fn picture(&mut self, step: u64, key: &str, size: (u32, u32), png: &[u8]) -> Result<(), ObserveError>;

    /// Writes the resident bytes of the run's processes on this host.
    fn memory(&mut self, step: u64, bytes: u64) -> Result<(), ObserveError>;

    /// Keeps copies of `files`, each with its name, and says that the run has ended.
    fn end(&mut self, ending: Ending, files: &[(&str, &Path)]) -> Result<(), ObserveError>;
}
