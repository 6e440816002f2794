//! Qwen2-VL (`Qwen2VLForConditionalGeneration`): a plain tower before the decoder of Qwen2.5-VL.

use super::qwen2_5_vl;
use crate::model::config::ModelConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::vision::qwen2;

/// Reads the `config.json` of `Qwen2VLForConditionalGeneration`.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig, ModelConfigError> {
    qwen2_5_vl::read_with("qwen2_vl", keys, "hidden_size", qwen2::read)
}
