//! Pipeline parallelism: one step of a rank's stages, in the order of a schedule that `core::schedule` makes.

mod key_values;
mod run;

pub use run::{Passed, PipelineRun, Recorded};
