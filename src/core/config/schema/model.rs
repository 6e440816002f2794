//! Which model is trained, from which weights, and which parts of it.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The model: a directory in Hugging Face layout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Directory with `config.json`, `tokenizer.json`, chat template, preprocessor config and weights.
    pub path: PathBuf,
    /// `load` the directory's weights, or start from `random` ones.
    #[serde(default)]
    pub weights: Weights,
    /// Any keys of the model's `config.json`, replaced.
    #[serde(default)]
    pub overrides: serde_json::Map<String, serde_json::Value>,
    /// The vision tower.
    #[serde(default)]
    pub image_encoder: Part,
    /// The language model.
    #[serde(default)]
    pub foundation: Part,
}

/// How one part of the model is trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Part {
    /// Keep this part's weights as they are; no gradient is computed for it.
    pub freeze: bool,
    /// Which segments' activations are dropped after the forward pass and computed again for the backward pass.
    pub recompute: Recompute,
}

/// Where the first weights come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Weights {
    #[default]
    Load,
    Random,
}

/// Which segments are recomputed in the backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Recompute {
    #[default]
    None,
    All,
}
