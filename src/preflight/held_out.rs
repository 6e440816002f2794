//! Describes whether held-out sets can be evaluated: one of which nothing can be used would be told of when the model is trained.

use crate::eval::held_out_sets;
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
    #[error("{key}")]
    Open { key: String, source: DataError },
    #[error("{key}: none of its samples can be used; the first: {first}")]
    Unusable { key: String, first: String },
}

/// Opens the sets of `eval` that have files of their own, each once, and looks for a sample of each that can be used. Returns a line
/// about each whose first ones cannot. The set of `data.val_size` is looked at with the data that it is of.
///
/// # Errors
/// A set cannot be opened; or nothing of it can be used, and the run would fail after its last step.
pub(super) fn check(
    config: &RunConfig,
    folder: &ModelFolder,
    decoder: &Arc<dyn MediaDecoder>,
) -> Result<Vec<String>, HeldOutProblem> {
    let Some(eval) = &config.eval else { return Ok(Vec::new()) };
    let mut lines = Vec::new();
    // A set without usable samples ends no run that evaluates it while it goes on; whole answers are evaluated only then.
    let is_after = held_out_sets::during(config, folder).is_none() && config.train.preference.is_none();
    for (name, _) in eval.files() {
        let key = if name == Eval::HELD_OUT { "eval.path".to_owned() } else { format!("eval.sets.{name}") };
        let opened = held_out_sets::open_set(config, folder, Some(decoder), (eval, name));
        let dataset = opened.map_err(|source| HeldOutProblem::Open { key: key.clone(), source })?.dataset;
        let Some(first) = first_of_none(&dataset) else { continue };
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

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::config::load_text;
    use loongforge_core::data::InProcess;
    use std::error::Error;
    use std::path::Path;

    #[test]
    fn sets_with_files_of_their_own_are_opened_and_named_and_samples_that_training_leaves_out_are_not_opened_again() {
        let yaml = include_str!("../../configs/sft_text.yaml");
        let config = load_text(&format!("{yaml}\neval: {{ sets: {{ own: README.md }} }}\n"));
        let mut config = config.unwrap_or_else(|report| panic!("{report}")).config;
        // Without a tokenizer no data set can be opened.
        let dir = tempfile::tempdir().unwrap();
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/torch/tests/fixtures/llama3-tied-3layers");
        std::fs::copy(fixture.join("config.json"), dir.path().join("config.json")).unwrap();
        let folder = ModelFolder::open_plain(dir.path()).unwrap();
        let decoder: Arc<dyn MediaDecoder> = Arc::new(InProcess);
        let error = check(&config, &folder, &decoder).unwrap_err();
        assert_eq!(error.to_string(), "eval.sets.own");
        assert!(error.source().is_some_and(|cause| !cause.to_string().is_empty()), "{error:?}");
        config.data.val_size = 0.5;
        config.eval.iter_mut().for_each(|eval| eval.sets.clear());
        assert!(config.eval.as_ref().is_some_and(|eval| eval.set_names(&config.data) == [Eval::VAL]));
        assert!(check(&config, &folder, &decoder).unwrap().is_empty());
    }
}
