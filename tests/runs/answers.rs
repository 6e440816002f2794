//! The code that the tests of runs that learn from answers have in common.

use loongforge::core::observe::PairMetrics;
use loongforge::core::schedule::StepSummary;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// The tolerance of losses, rewards, log-probabilities, divergences and gradient norms in five steps; both sides round in another order.
pub const TOLERANCE: f64 = 1e-4;

/// A reward of 0 is the difference of two log-probabilities of some hundred.
pub fn is_near(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= TOLERANCE * expected.abs().max(1.0)
}

/// Returns a folder with the config `run`, in which DATA is the committed data and ROOT the folder itself.
pub fn folder_with(run: &str, data: &Path) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let text = run.replace("DATA", &data.display().to_string()).replace("ROOT", &dir.path().display().to_string());
    fs::write(dir.path().join("run.yaml"), text).unwrap();
    dir
}

/// Returns the figures that are reported of a step, by name.
pub fn found(summary: &StepSummary) -> [(&'static str, f64); 7] {
    let answers = PairMetrics::of(&summary.pairs.expect("answers are reported")).expect("answers that count");
    [
        ("loss", summary.loss),
        ("grad_norm", summary.grad_norm),
        ("divergence", answers.divergence),
        ("chosen_reward", answers.chosen_reward),
        ("rejected_reward", answers.rejected_reward),
        ("chosen_logp", answers.chosen_logp),
        ("rejected_logp", answers.rejected_logp),
    ]
}
