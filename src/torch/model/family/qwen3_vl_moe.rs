//! Qwen3-VL with experts (`Qwen3VLMoeForConditionalGeneration`): Qwen3-VL before the decoder of Qwen3-MoE, whose experts
//! the checkpoint stacks.

use super::common::NamePrefix;
use super::qwen3_vl::with_tower;
use super::qwen3_vl_moe_text;
use crate::model::config::ModelConfig;
use crate::model::keys::{Keys, ModelConfigError};

/// Reads the `config.json` of `Qwen3VLMoeForConditionalGeneration`.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig, ModelConfigError> {
    let decoder =
        qwen3_vl_moe_text::FAMILY.read(&keys.section("text_config")?, &NamePrefix::new("model.language_model.", ""))?;
    with_tower("qwen3_vl_moe", keys, decoder)
}
