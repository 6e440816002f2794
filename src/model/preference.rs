//! A model that learns from pairs of answers, and the model that it is compared with.

use crate::model::diffusers::read_json;
use crate::model::error::FolderError;
use crate::model::folder::ModelFolder;
use crate::model::sources::locate;
use loongforge_core::config::{Model, Preference, PreferenceLoss};
use loongforge_torch::model::{self as torch, Kto, ModelConfig};

impl ModelFolder {
    /// The same model, which learns from pairs of answers. The reference model is that of `model.reference.load`, else this one
    /// as its folder has it.
    ///
    /// # Errors
    /// It does not predict tokens, it has towers and the loss a reference, or the reference's config cannot be read.
    pub fn with_preference(self, model: &Model, preference: &Preference) -> Result<Self, FolderError> {
        let objective = objective(preference);
        let model_type = self.config.model_type.clone();
        let compares = objective.loss.needs_reference();
        if compares && !self.config.towers.is_empty() {
            return Err(FolderError::ReferenceOfTowers { model_type });
        }
        let own = model.reference.load.as_ref().filter(|_| compares);
        let (path, reference) = match own {
            Some(source) => {
                let path = locate("model.reference.load", source)?.join("config.json");
                let json = read_json(&path)?;
                (path, json)
            }
            None => (self.path.join("config.json"), self.json.clone()),
        };
        let wrong = |source| FolderError::Model { path, source };
        let config: Option<ModelConfig> =
            self.config.with_preference(objective, compares.then_some(&reference)).map_err(wrong)?;
        let config = config.ok_or(FolderError::NoAnswers { model_type })?;
        Ok(Self { config, ..self })
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
