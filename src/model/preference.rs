//! A model that learns from pairs of answers, and the model that it is compared with.

use crate::model::error::FolderError;
use crate::model::folder::ModelFolder;
use crate::model::sources::locate;
use loongforge_core::config::{Preference, PreferenceLoss, RunConfig};
use loongforge_core::data::media::colors;
use loongforge_core::message::Tower;
use loongforge_torch::model::{self as torch, AnswersError, Kto, ModelConfig};

impl ModelFolder {
    /// Returns the same model, which learns from pairs of answers. The reference model is that of `model.reference.load`, else this one
    /// as its folder has it.
    ///
    /// # Errors
    /// It does not predict tokens, the reference's config cannot be read, or the reference cannot see what this model sees.
    pub fn with_preference(self, config: &RunConfig, preference: &Preference) -> Result<Self, FolderError> {
        let model = &config.model;
        let objective = objective(preference);
        let model_type = self.config.model_type.clone();
        let compares = objective.loss.needs_reference();
        let has_towers = !self.config.towers.is_empty();
        let own = model.reference.load.as_ref().filter(|_| compares);
        if compares && has_towers && own.is_none() && model.load.is_none() {
            return Err(FolderError::ReferenceOfParts { model_type });
        }
        let reference = match own {
            Some(source) => {
                let folder = ModelFolder::open_plain(&locate("model.reference.load", source)?)?;
                if has_towers && !folder.config.towers.is_empty() {
                    expect_like_colors(&self, &folder)?;
                }
                Some(folder.config)
            }
            None if compares => {
                let wrong = |source| FolderError::Model { path: self.path.join("config.json"), source };
                Some(ModelConfig::from_hf(&self.json).map_err(wrong)?)
            }
            None => None,
        };
        let learns = self.config.with_preference(objective, reference.as_ref());
        let settled = learns.map_err(|source| FolderError::Answers { source })?;
        if compares && has_towers {
            expect_own_pool(config, &settled)?;
        }
        Ok(Self { config: settled, ..self })
    }
}

/// Both models get the pictures of the model's processor.
fn expect_like_colors(model: &ModelFolder, reference: &ModelFolder) -> Result<(), FolderError> {
    let colors = |folder: &ModelFolder| -> Result<String, FolderError> {
        let [mean, std] = colors(&folder.media_path)?;
        Ok(format!("colors of mean {mean:?} and deviation {std:?}"))
    };
    let (own, other) = (colors(model)?, colors(reference)?);
    if own == other {
        return Ok(());
    }
    let model_type = reference.config.model_type.clone();
    Err(FolderError::Answers { source: AnswersError::OtherPictures { own, model_type, other } })
}

/// Refuses a reference model that shares its pool with towers: it sends no gradients and is in no checkpoint, and they are.
fn expect_own_pool(config: &RunConfig, model: &ModelConfig) -> Result<(), FolderError> {
    let pools = config.pools.encoders(model.towers.set());
    let shared = pools.iter().find(|(.., held)| held.contains(Tower::Reference) && held.iter().count() > 1);
    match shared {
        Some((pool, ..)) => Err(FolderError::ReferenceShares { pool: pool.to_string() }),
        None => Ok(()),
    }
}

/// Returns the objective that a config asks for, its defaults filled in.
fn objective(preference: &Preference) -> torch::Preference {
    let Preference { loss, beta, label_smoothing, gamma, nll_weight, desirable_weight, undesirable_weight, .. } =
        *preference;
    let label_smoothing = label_smoothing.unwrap_or(0.0);
    let (default_beta, default_nll) = match loss {
        PreferenceLoss::Orpo => (0.1, 1.0),
        PreferenceLoss::Simpo => (2.0, 0.0),
        _ => (0.1, 0.0),
    };
    let loss = match loss {
        PreferenceLoss::Sigmoid => torch::PreferenceLoss::Sigmoid { label_smoothing },
        PreferenceLoss::Robust => torch::PreferenceLoss::Robust { label_smoothing },
        PreferenceLoss::Hinge => torch::PreferenceLoss::Hinge,
        PreferenceLoss::Ipo => torch::PreferenceLoss::Ipo,
        PreferenceLoss::ApoZero => torch::PreferenceLoss::ApoZero,
        PreferenceLoss::ApoDown => torch::PreferenceLoss::ApoDown,
        PreferenceLoss::Orpo => torch::PreferenceLoss::Orpo,
        PreferenceLoss::Simpo => torch::PreferenceLoss::Simpo { gamma: gamma.unwrap_or(1.0) },
        PreferenceLoss::Kto => torch::PreferenceLoss::Kto(Kto {
            desirable_weight: desirable_weight.unwrap_or(1.0),
            undesirable_weight: undesirable_weight.unwrap_or(1.0),
        }),
    };
    let group_size = if preference.loss == PreferenceLoss::Kto { preference.num_grouped() as u32 } else { 1 };
    let (beta, nll_weight) = (beta.unwrap_or(default_beta), nll_weight.unwrap_or(default_nll));
    torch::Preference { loss, beta, nll_weight, group_size }
}
