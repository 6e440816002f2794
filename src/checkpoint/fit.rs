//! Describes whether the weights in a folder are those of a model: asked before anything is built.

use loongforge_core::data::{COMPONENTS, DIFFUSION, ModelCard};
use loongforge_torch::model::ModelConfig;
use loongforge_torch::train::WeightsError;
use loongforge_torch::train::hf::{Checkpoint, LoadOptions, compare_weights};
use serde_json::Value;
use std::path::Path;

/// Why weights and model do not go together.
pub type FitError = WeightsError;

/// Opens the weights in `folder` and compares all of them with the parameters of both pools; parts that checkpoints carry
/// are left out of it. Nothing is allocated.
///
/// # Errors
/// A file is torn, or a tensor is missing, misshaped, of a wrong type or not the model's: all of them in one table.
pub fn expect_fit(folder: &Path, model: &ModelConfig, options: &LoadOptions) -> Result<(), FitError> {
    let checkpoint = Checkpoint::open(folder)?;
    let carried = model.carried.prefixes.iter().map(|prefix| format!("{prefix}*"));
    // A run has parts of a diffusion model's encoders, and one of its transformers; checkpoints carry the rest.
    let networks = COMPONENTS.iter().filter(|network| model.model_type == DIFFUSION && network.name != "transformer");
    let networks = networks.map(|network| format!("{}.*", network.name));
    let ignore = options.ignore.iter().cloned().chain(carried).chain(networks).collect();
    compare_weights(&model.specs(), &checkpoint, &LoadOptions { ignore, ..options.clone() })
}

/// Returns how strictly a folder with this `config.json` is compared: layers for multi-token prediction may be left
/// out.
pub fn load_options(config: &Value, resize_embeddings: bool) -> LoadOptions {
    let mut ignore = ["mtp.*", "*.mtp.*", "*mtp_layers.*"].map(str::to_owned).to_vec();
    for keys in ModelCard::of(config).of_text() {
        let number = |key: &str| keys[key].as_u64();
        let (layers, heads) = (number("num_hidden_layers"), number("num_nextn_predict_layers"));
        if let (Some(layers), Some(heads)) = (layers, heads) {
            // They are stored behind the last layer.
            ignore.extend((layers..layers + heads.min(16)).map(|layer| format!("*layers.{layer}.*")));
        }
    }
    LoadOptions { ignore, resize_embeddings, ..LoadOptions::default() }
}
