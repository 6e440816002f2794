//! The settings of a run's training for a model that predicts tokens, beside its objective.

use crate::model::error::FolderError;
use crate::model::folder::ModelFolder;
use loongforge_core::config::{LossWeighting, Train};
use loongforge_torch::model::{Neftune, Smoothing};

impl ModelFolder {
    /// Returns the same model, trained with smoothed labels and noise on embeddings, and with weighed samples, where `train` says so;
    /// noise belongs to `seed`.
    ///
    /// # Errors
    /// It does not predict tokens, and one of them is asked for.
    pub fn with_token_training(mut self, train: &Train, seed: u64) -> Result<Self, FolderError> {
        let (share, alpha) = (train.label_smoothing, train.neftune_alpha);
        let keys = [
            ("train.label_smoothing", share > 0.0),
            ("train.neftune_alpha", alpha > 0.0),
            ("train.loss_weighting", train.loss_weighting != LossWeighting::Token),
        ];
        let Some((key, _)) = keys.into_iter().find(|(_, is_set)| *is_set) else { return Ok(self) };
        let edited = self.config.edit_decoder(|decoder| {
            decoder.smoothing = Smoothing::new(share, decoder.vocab_size);
            decoder.weighting = train.loss_weighting;
            decoder.neftune = (alpha > 0.0).then_some(Neftune { alpha, seed });
        });
        match edited {
            Some(()) => Ok(self),
            None => Err(FolderError::NotOfTokens { key, model_type: self.config.model_type }),
        }
    }
}
