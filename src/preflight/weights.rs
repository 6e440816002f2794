//! Headers of all folders that weights come from against the model's parameters.

use crate::checkpoint::{FitError, expect_fit, expect_tied_head, load_options};
use crate::model::folder::ModelFolder;
use loongforge_core::config::{RunConfig, Weights};
use loongforge_core::message::Tower;
use loongforge_torch::engine::check_weights;
use loongforge_torch::model::ModelConfig;

/// The reasons why a run cannot begin with the weights that its config names.
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
/// A file is torn, or tensors do not fit, all of which are in one table.
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
        _ => {
            expect_no_other_head(config, folder)?;
            check_weights(config, &folder.config)?;
        }
    }
    Ok(())
}

/// Sees to it that the folder of the language model has no head that differs from its embedding where the model's head is the embedding:
/// of a folder that another part is left out of, nothing else is compared.
fn expect_no_other_head(config: &RunConfig, folder: &ModelFolder) -> Result<(), FitError> {
    let model = &config.model;
    if folder.config.tied_head().is_none() {
        return Ok(());
    }
    match (&model.foundation.load, &model.load) {
        // Its tensors have the names of that folder. One that cannot be read is told of where it is loaded.
        (Some(part), _) => match ModelFolder::open_plain(part.as_path()) {
            Ok(own) => expect_tied_head(part.as_path(), &own.config, &model.load_ignore),
            Err(_) => Ok(()),
        },
        (None, Some(load)) if model.weights == Weights::Load => {
            expect_tied_head(load.as_path(), &folder.config, &model.load_ignore)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::config::{Source, load_text};
    use loongforge_torch::train::hf::write_tensor_file;
    use std::path::Path;
    use tch::Tensor;

    const YAML: &str = include_str!("../../configs/sft_text.yaml");

    #[test]
    fn a_head_that_differs_from_the_embedding_of_a_part_is_refused() {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/torch/tests/fixtures/llama3-tied-3layers");
        let dir = tempfile::tempdir().unwrap();
        std::fs::copy(fixture.join("config.json"), dir.path().join("config.json")).unwrap();
        let mut tensors = Tensor::read_safetensors(fixture.join("model.safetensors")).unwrap();
        tensors.retain(|(name, _)| name != "lm_head.weight");
        let table = tensors.iter().find(|(name, _)| name == "model.embed_tokens.weight").unwrap().1.shallow_clone();
        let mut config = load_text(YAML).unwrap_or_else(|report| panic!("{report}")).config;
        config.model.load = None;
        config.model.foundation.load = Some(Source::new(dir.path().display().to_string()));
        let mut expect = |head: Tensor, ignored: &[&str]| {
            tensors.retain(|(name, _)| name != "lm_head.weight");
            tensors.push(("lm_head.weight".to_owned(), head));
            write_tensor_file(&tensors, &[], dir.path(), "model.safetensors").unwrap();
            config.model.load_ignore = ignored.iter().map(|pattern| (*pattern).to_owned()).collect();
            let folder = ModelFolder::open_plain(dir.path()).unwrap();
            expect_weights(&config, &folder).map_err(|error| error.to_string())
        };
        assert_eq!(expect(table.shallow_clone(), &[]), Ok(()));
        let error = expect(&table * 2.0, &[]).unwrap_err();
        assert!(error.contains("lm_head.weight differs from model.embed_tokens.weight"), "{error}");
        assert_eq!(expect(&table * 2.0, &["lm_head.*"]), Ok(()));
    }
}
