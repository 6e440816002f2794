//! Qwen3.5 and Qwen3.6 with experts (`Qwen3_5MoeForConditionalGeneration`): Qwen3.5 with Qwen3-Next's experts in every
//! layer.

use super::qwen3_5::{no_deepstack, with_axes};
use super::qwen3_5_moe_text;
use super::qwen3_vl::with_tower;
use crate::model::config::ModelConfig;
use crate::model::keys::{Keys, ModelConfigError};

type Result<T> = std::result::Result<T, ModelConfigError>;

/// Reads the `config.json` of `Qwen3_5MoeForConditionalGeneration`.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    no_deepstack(keys)?;
    with_tower("qwen3_5_moe", keys, with_axes(&keys.section("text_config")?, &qwen3_5_moe_text::FAMILY)?)
}
