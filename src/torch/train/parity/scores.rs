//! The scores of a fixture's targets, which a held-out loss is made of, against the reference's loss and logits.

use super::fixture::{Document, Fixture};
use super::models::Models;
use super::report::ParityReport;
use super::state::ParityError;
use crate::model::TokenScores;
use loongforge_core::data::IGNORE_INDEX;
use tch::{Kind, Reduction, Tensor};

impl Models {
    /// Packed and one by one; `logits` are the reference's of the packed row.
    pub(super) fn compare_scores(
        &self,
        fixture: &Fixture,
        logits: &Tensor,
        report: &mut ParityReport,
    ) -> Result<(), ParityError> {
        let documents: Vec<&Document> = fixture.documents.iter().collect();
        let targets: Vec<i64> = documents.iter().flat_map(|document| document.targets.clone()).collect();
        let losses = Tensor::from_slice(&self.scores(&documents, &targets)?.losses);
        // With prediction heads the reference's loss has theirs, too.
        if let Some(expected) = fixture.expected.get("packed.loss").filter(|_| fixture.decoder().mtp.is_none()) {
            report.compare("held-out loss", "packed.loss", &losses.mean(Kind::Double), expected);
        }
        let mut alone = Vec::new();
        for document in &documents {
            alone.extend(self.scores(&[document], &document.targets)?.losses);
        }
        report.compare("held-out alone", "each document", &Tensor::from_slice(&alone), &losses);

        // Random models are never correct: every other target is what the reference thinks likeliest.
        let best = Vec::<i64>::try_from(logits.argmax(-1, false)).expect("a row of integers");
        let every_other = |(at, (best, target)): (usize, (&i64, &i64))| if at % 2 == 0 { *best } else { *target };
        let labels: Vec<i64> = best.iter().zip(&targets).enumerate().map(every_other).collect();
        let found = self.scores(&documents, &labels)?;
        let shifted = Tensor::from_slice(&labels);
        let losses = logits.cross_entropy_loss::<Tensor>(&shifted, None, Reduction::None, IGNORE_INDEX, 0.0);
        let rows = shifted.not_equal(IGNORE_INDEX).nonzero().flatten(0, -1);
        report.compare("held-out losses", "logits", &Tensor::from_slice(&found.losses), &losses.index_select(0, &rows));
        let correct = logits.argmax(-1, false).eq_tensor(&shifted).index_select(0, &rows);
        report.compare("held-out correct", "logits", &Tensor::from_slice(&found.correct), &correct);
        Ok(())
    }

    fn scores(&self, documents: &[&Document], labels: &[i64]) -> Result<TokenScores, ParityError> {
        let (text, features) = (&self.text, self.features(documents));
        Ok(text.model.score(&text.params, &self.batch(documents), labels, &features)?)
    }
}
