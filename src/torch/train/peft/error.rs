//! The errors of adapters.

use crate::train::hf::{TensorFileError, WeightsError};
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    #[error(transparent)]
    File(#[from] TensorFileError),
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path} is not the config of a LoRA adapter: {reason}")]
    Config { path: PathBuf, reason: String },
    #[error("{path} does not match the model with its adapters: {}", first(problems))]
    Mismatch { path: PathBuf, problems: Vec<String> },
}

/// Returns the first problems, and how many others there are: adapters of another model differ in every tensor.
fn first(problems: &[String]) -> String {
    const SHOWN: usize = 4;
    let shown = problems[..problems.len().min(SHOWN)].join("; ");
    match problems.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_of_another_model_are_told_by_their_first_tensors() {
        let problems = |count: usize| (0..count).map(|index| format!("{index} is missing")).collect::<Vec<_>>();
        assert_eq!(first(&problems(2)), "0 is missing; 1 is missing");
        assert!(first(&problems(196)).ends_with("3 is missing; and 192 more"));
    }
}
