//! The settings of adapters as a run's config has them, and what may be wrong with them.

use crate::params::LoraConfig;
use crate::train::AdapterError;
use loongforge_core::config::Lora;

#[derive(Debug, thiserror::Error)]
pub enum TrainedError {
    #[error("{key}.lora.target_modules: no linear layer matches `{target}`; available: {known}{}", of_head(target))]
    NoTarget { key: &'static str, target: String, known: String },
    #[error("{key}.lora.target_parameters: no stacked parameter matches `{target}`; available: {known}")]
    NoParameter { key: &'static str, target: String, known: String },
    #[error("{key}.lora.{name}: no module matches `{pattern}`; available: {known}{}", of_head(pattern))]
    NoModule { key: &'static str, name: &'static str, pattern: String, known: String },
    #[error("{key}.lora: every linear layer of this part is excluded")]
    NothingLeft { key: &'static str },
    #[error(
        "{key}.frozen_precision: no weight of a linear layer of this part is frozen, and trained weights are not rounded: set \
         {key}.lora or {key}.freeze, or leave it out"
    )]
    NothingFrozen { key: &'static str },
    #[error("{key}.frozen_precision: {name}: {why}")]
    CutBlocks { key: &'static str, name: String, why: &'static str },
    #[error("{key}.{list}: no parameter of this part matches `{pattern}`")]
    NoMatch { key: &'static str, list: &'static str, pattern: String },
    #[error(
        "{key}.{list}: all that `{pattern}` matches is frozen by the model itself, by a key of its config.json such as \
         train_expert_only or tune_projector, or because nothing learns from it: change the key with model.overrides, or leave \
         `{pattern}` out"
    )]
    AllFrozen { key: &'static str, list: &'static str, pattern: String },
    #[error("{key}.lr_ratios: no trained parameter of this part matches `{pattern}`")]
    NoRate { key: &'static str, pattern: String },
    #[error("{key}.lr_ratios: both `{first}` and `{second}` match {name}: a parameter has one learning rate")]
    TwoRates { key: &'static str, name: String, first: String, second: String },
    #[error("{key}.lora.adapter: {source}")]
    Adapter { key: &'static str, source: Box<AdapterError> },
    #[error("{key}.lora.adapter: {folder} has no adapters of this part")]
    NoAdapter { key: &'static str, folder: String },
    #[error(
        "{key}.lora.{name} is {typed}, but the adapter in {folder} has {found}: leave {name} out to use the adapter's"
    )]
    Contradiction { key: &'static str, name: &'static str, typed: String, found: String, folder: String },
    #[error(
        "{key}.lora.{name} gives {module} {typed}, but the adapter in {folder} has {found} for it: leave {name} out to use the \
         adapter's"
    )]
    Misplaced {
        key: &'static str,
        name: &'static str,
        typed: &'static str,
        found: &'static str,
        folder: String,
        module: String,
    },
}

/// Returns the hint that follows an error where the head is named and there is none; empty for other modules.
fn of_head(target: &str) -> &'static str {
    match target.rsplit('.').next() {
        Some("lm_head") => {
            "; a head that is tied to the embedding (tie_word_embeddings in config.json) is no layer of its own: name \
             embed_tokens in modules_to_save to train both"
        }
        _ => "",
    }
}

/// Returns PEFT's settings of the adapter beside the module at this path.
pub fn lora_config(lora: &Lora, path: &str) -> LoraConfig {
    LoraConfig {
        r: lora.rank_of(path) as i64,
        alpha: lora.alpha_of(path),
        dropout: lora.dropout.unwrap_or(0.0),
        use_rslora: lora.use_rslora.unwrap_or(false),
        use_dora: lora.use_dora.unwrap_or(false),
    }
}
