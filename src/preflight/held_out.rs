//! Describes whether held-out sets can be evaluated: one of which nothing can be used would be told of when the model is trained.

use crate::eval::held_out_sets::{self, HeldOutSet};
use crate::model::folder::ModelFolder;
use loongforge_core::config::{Eval, RunConfig};
use loongforge_core::data::{BadSample, DataError, Dataset, MediaDecoder};
use loongforge_core::observe::safe;
use std::sync::Arc;

/// Samples of a set that are looked at, at most: the first that can be used is enough.
const NUM_FIRST: u64 = 100;

/// Why held-out sets cannot be evaluated.
#[derive(Debug, thiserror::Error)]
pub enum HeldOutProblem {
    #[error("eval: the held-out samples cannot be opened")]
    Open(#[source] DataError),
    #[error("{key}: none of its samples can be used; the first: {first}")]
    Unusable { key: String, first: String },
}

/// Opens the sets of `eval` and looks for a sample of each that can be used. A line of each whose first ones cannot.
///
/// # Errors
/// A set cannot be opened; or nothing of it can be used, and the run would fail after its last step.
pub(super) fn check(
    config: &RunConfig,
    folder: &ModelFolder,
    decoder: &Arc<dyn MediaDecoder>,
) -> Result<Vec<String>, HeldOutProblem> {
    let sets = held_out_sets::open(config, folder, Some(decoder)).map_err(HeldOutProblem::Open)?;
    let mut lines = Vec::new();
    // A set without usable samples ends no run that evaluates it while it goes on; whole answers are evaluated only then.
    let is_after = held_out_sets::during(config, folder).is_none() && config.train.preference.is_none();
    // Those of `data.val_size` are looked at with the data that they are of.
    for HeldOutSet { name, dataset } in sets.iter().filter(|set| set.name != Eval::VAL) {
        let Some(first) = first_of_none(dataset) else { continue };
        let key = if name == Eval::HELD_OUT { "eval.path".to_owned() } else { format!("eval.sets.{name}") };
        let (first, len) = (safe(&first.to_string()), dataset.len() as u64);
        let seen = match len <= NUM_FIRST {
            true if is_after => return Err(HeldOutProblem::Unusable { key, first }),
            true => format!("its {len} samples"),
            false => format!("the first {NUM_FIRST} of {len} samples"),
        };
        lines.push(format!("warning: {key}: none of {seen} can be used; the first: {first}"));
    }
    Ok(lines)
}

/// Returns the first of the samples that were looked at if none of them can be used, neither for the loss nor as a question.
fn first_of_none(dataset: &Dataset) -> Option<BadSample> {
    let mut first = None;
    for position in 0..NUM_FIRST.min(dataset.len() as u64) {
        let Err(bad) = dataset.sample(position) else { return None };
        if dataset.is_conversation() && dataset.prompt(position).is_ok() {
            return None;
        }
        first = first.or(Some(bad));
    }
    first
}
