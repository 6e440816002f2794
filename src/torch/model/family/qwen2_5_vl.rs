//! Qwen2.5-VL (`Qwen2_5_VLForConditionalGeneration`): a tower with windows before a Qwen2.5 decoder whose positions have
//! three axes, one section of frequencies after the other.

use super::common::NamePrefix;
use super::{qwen2_5_vl_text, vision};
use crate::model::config::{ModelConfig, Tokens};
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::vision::{VisionConfig, qwen2_5};

/// A tower and a merger of these prefixes, with features of a width.
type ReadTower = fn(&Keys<'_>, &str, &str, i64) -> Result<VisionConfig, ModelConfigError>;

/// Reads the `config.json` of `Qwen2_5_VLForConditionalGeneration`.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig, ModelConfigError> {
    read_with("qwen2_5_vl", keys, "out_hidden_size", qwen2_5::read)
}

/// The model with another tower, whose config has the width of features under `width_key`. Published configs have the
/// decoder's keys beside the others, not in `text_config`.
pub(super) fn read_with(
    model_type: &str,
    keys: &Keys<'_>,
    width_key: &str,
    read_tower: ReadTower,
) -> Result<ModelConfig, ModelConfigError> {
    let vision_keys = keys.section("vision_config")?;
    let text_keys = keys.section_or("text_config")?.unwrap_or_else(|| keys.clone());
    let decoder = qwen2_5_vl_text::FAMILY.read(&text_keys, &NamePrefix::alone())?;
    // Either place may say so: configs of transformers 4 say it in `text_config` alone.
    let tie_word_embeddings = decoder.tie_word_embeddings || keys.flag_or("tie_word_embeddings")?.unwrap_or(false);
    let decoder = DecoderConfig { tie_word_embeddings, ..decoder };
    vision::check_width(&vision_keys, width_key, &decoder)?;
    let encoder = read_tower(&vision_keys, "visual.", "visual.merger.", decoder.hidden_size)?;
    let tokens = Tokens::read(keys, decoder.vocab_size)?;
    vision::model(model_type, keys, decoder, encoder, tokens)
}
