//! Qwen3-VL, dense (`Qwen3VLForConditionalGeneration`): a vision transformer with DeepStack before a Qwen3 decoder whose
//! positions have three axes.

use super::common::NamePrefix;
use super::{qwen3_vl_text, vision};
use crate::model::config::{ModelConfig, Tokens};
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::vision::qwen3;

/// Reads the `config.json` of `Qwen3VLForConditionalGeneration`.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig, ModelConfigError> {
    let decoder =
        qwen3_vl_text::FAMILY.read(&keys.section("text_config")?, &NamePrefix::new("model.language_model.", ""))?;
    with_tower("qwen3_vl", keys, decoder)
}

/// The model of a decoder and the tower that Qwen3-VL, dense or not, and Qwen3.5 have before it.
pub(super) fn with_tower(
    model_type: &str,
    keys: &Keys<'_>,
    decoder: DecoderConfig,
) -> Result<ModelConfig, ModelConfigError> {
    let vision_keys = keys.section("vision_config")?;
    let decoder = vision::tied(keys, decoder)?;
    vision::check_width(&vision_keys, "out_hidden_size", &decoder)?;
    let encoder = qwen3::read(&vision_keys, "model.visual.", "model.visual.merger.", decoder.hidden_size)?;
    let tokens = Tokens::read(keys, decoder.vocab_size)?;
    vision::model(model_type, keys, decoder, encoder, tokens)
}
