//! Headers of all folders that weights come from against the model's parameters.

use crate::checkpoint::{FitError, expect_fit, load_options};
use crate::model::folder::ModelFolder;
use loongforge_core::config::{RunConfig, Weights};
use loongforge_core::message::Tower;
use loongforge_torch::engine::check_weights;
use loongforge_torch::model::ModelConfig;

/// Why a run cannot begin with the weights that its config names.
#[derive(Debug, thiserror::Error)]
pub enum WeightsProblem {
    #[error("{0}; for random weights set model.weights=random")]
    None(FitError),
    #[error(transparent)]
    Unfit(FitError),
}

impl From<FitError> for WeightsProblem {
    fn from(error: FitError) -> Self {
        match error {
            FitError::NoWeights { .. } => Self::None(error),
            error => Self::Unfit(error),
        }
    }
}

/// Checks that the weights that a fresh run begins with are those of its model, before anything is built.
///
/// # Errors
/// All that does not fit, in one table, or the file that is torn.
pub fn expect_weights(config: &RunConfig, folder: &ModelFolder) -> Result<(), WeightsProblem> {
    let model = &config.model;
    let has_parts = model.parts().iter().any(|(_, part)| part.load.is_some());
    match &model.load {
        // All of one folder must be of use; of a part's folder another part may be left out.
        Some(load) if model.weights == Weights::Load && !has_parts => {
            let mut options = load_options(&folder.json);
            options.resize_embeddings = model.resize_embeddings;
            options.ignore.extend(model.load_ignore.iter().cloned());
            let towers = &folder.config.towers;
            let others = towers.set().iter().filter(|tower| *tower != Tower::Reference).collect();
            let trained = ModelConfig { towers: towers.only(others), ..folder.config.clone() };
            expect_fit(load.as_path(), &trained, &options)?;
            if towers.set().contains(Tower::Reference) {
                check_weights(config, &folder.config)?;
            }
        }
        _ => check_weights(config, &folder.config)?,
    }
    Ok(())
}
