//! The losses by which indexers learn, and their gradients, against the fixture's: a run of its own for each stage.

use std::path::Path;

use tch::Tensor;

use super::fixture::{Document, Fixture};
use super::models::Models;
use super::report::ParityReport;
use super::state::ParityError;

/// The indexers' losses and gradients, where the fixture has them.
pub(super) fn compare_indexers(
    fixture: &Fixture,
    folder: &Path,
    documents: &[&Document],
    report: &mut ParityReport,
) -> Result<(), ParityError> {
    let num_tokens: usize = documents.iter().map(|document| document.input_ids.len()).sum();
    for (stage, dense) in [("sparse", false), ("dense", true)] {
        let Some(expected) = fixture.expected.get(&format!("indexer_loss/{stage}")) else { continue };
        let mut config = fixture.config.clone();
        if config.edit_decoder(|decoder| decoder.train_indexers(1.0, dense)) != Some(true) {
            report.problems.push("the model has no indexer".to_owned());
            break;
        }
        let mut models = Models::load(fixture, &config, folder)?;
        models.step(documents, 1.0 / fixture.num_targets() as f64)?;
        // A prediction head's indexer is not among the reference's.
        let found: Vec<f64> = models.mixer_losses.iter().map(|loss| loss / num_tokens as f64).collect();
        let found = &found[..found.len().min(expected.numel())];
        report.compare("indexer losses", stage, &Tensor::from_slice(found), expected);
        let prefix = format!("indexer_grad/{stage}/");
        for (key, expected) in fixture.expected.iter().filter(|(key, _)| key.starts_with(&prefix)) {
            match models.text.params.find(&key[prefix.len()..]) {
                Some(id) => report.compare("indexer gradients", key, models.text.grads.view(id), expected),
                None => report.problems.push(format!("there is no parameter of {key}")),
            }
        }
    }
    Ok(())
}
