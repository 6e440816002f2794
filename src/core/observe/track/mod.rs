//! Runs as other programs list them: folders that W&B and MLflow read. Files alone are written, and nothing is sent.

mod files;
mod kept;
mod mlflow;
#[cfg(test)]
mod tests;
mod tracker;
mod trackers;
mod wandb;

pub use tracker::{Ending, TrackedRun};
pub use trackers::Trackers;
