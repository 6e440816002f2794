//! LLaVA-OneVision-1.5 (`LLaVAOneVision1_5_ForConditionalGeneration`): Rice ViT before a Qwen3 decoder with positions of
//! one axis.

use super::common::NamePrefix;
use super::{qwen3, vision};
use crate::model::config::{ModelConfig, Tokens};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::vision::rice;

/// Reads the `config.json` of `LLaVAOneVision1_5_ForConditionalGeneration`.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig, ModelConfigError> {
    let (text_keys, vision_keys) = (keys.section("text_config")?, keys.section("vision_config")?);
    // `text_config.model_type` names the model's own copy of Qwen3.
    let decoder = vision::tied(keys, qwen3::FAMILY.read(&text_keys, &NamePrefix::alone())?)?;
    vision::check_width(&vision_keys, "text_hidden_size", &decoder)?;
    let encoder = rice::read(&vision_keys, "visual.", "visual.merger.", decoder.hidden_size)?;
    let tokens = Tokens::read(keys, decoder.vocab_size)?;
    vision::model("llavaonevision1_5", keys, decoder, encoder, tokens)
}
