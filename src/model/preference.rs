//! A model that learns from pairs of answers, and the model that it is compared with.

use crate::model::diffusers::read_json;
use crate::model::error::FolderError;
use crate::model::folder::ModelFolder;
use crate::model::sources::locate;
use loongforge_core::config::{Preference, PreferenceLoss, RunConfig};
use loongforge_core::message::Tower;
use loongforge_torch::model::{self as torch, Kto, ModelConfig};

impl ModelFolder {
    /// The same model, which learns from pairs of answers. The reference model is that of `model.reference.load`, else this one
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
        let (path, json) = match own {
            Some(source) => {
                let path = locate("model.reference.load", source)?.join("config.json");
                let json = read_json(&path)?;
                (path, json)
            }
            None => (self.path.join("config.json"), self.json.clone()),
        };
        let wrong = |source| FolderError::Model { path, source };
        let reference = compares.then(|| ModelConfig::from_hf(&json)).transpose().map_err(wrong)?;
        let learns = self.config.with_preference(objective, reference.as_ref());
        let settled = learns.map_err(|source| FolderError::Answers { source })?;
        if compares && has_towers {
            expect_own_pool(config, &settled)?;
        }
        Ok(Self { config: settled, ..self })
    }
}

/// What a reference model sends has no gradients and is in no checkpoint, other than what towers send that are beside it in a pool.
fn expect_own_pool(config: &RunConfig, model: &ModelConfig) -> Result<(), FolderError> {
    let pools = config.pools.encoders(model.towers.set());
    let shared = pools.iter().find(|(.., held)| held.contains(Tower::Reference) && held.iter().count() > 1);
    match shared {
        Some((pool, ..)) => Err(FolderError::ReferenceShares { pool: pool.to_string() }),
        None => Ok(()),
    }
}

/// The objective that a config asks for, its defaults filled in.
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
