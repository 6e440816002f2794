//! Qwen2.5-VL (`Qwen2_5_VLForConditionalGeneration`): a tower with windows before a Qwen2.5 decoder whose positions have
//! three axes, one section of frequencies after the other.

use super::common::{Place, attention, dense, only_full_attention, uniform};
use super::vision;
use crate::model::decoder::{DecoderConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::registry::{ModelConfig, Tokens};
use crate::model::rope_config::{read_mrope, read_rope};
use crate::model::vision::qwen2_5;

/// Published configs have the decoder's keys beside the others, not in `text_config`.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig, ModelConfigError> {
    let vision_keys = keys.section("vision_config")?;
    let text_keys = keys.section_or("text_config")?.unwrap_or_else(|| keys.clone());
    let decoder = vision::tied(keys, read_text(&text_keys, &Place::alone())?)?;
    vision::check_width(&vision_keys, "out_hidden_size", &decoder)?;
    let encoder = qwen2_5::read(&vision_keys, "visual.", "visual.merger.", decoder.hidden_size)?;
    let tokens = Tokens::read(keys, decoder.vocab_size)?;
    vision::model("qwen2_5_vl", keys, decoder, encoder, tokens)
}

/// The decoder (`Qwen2_5_VLTextModel`).
pub(in crate::model) fn read_text(keys: &Keys<'_>, place: &Place) -> Result<DecoderConfig, ModelConfigError> {
    only_full_attention(keys)?;
    let mut attention = attention(keys)?;
    attention.qkv_bias = true;
    let mut rope = read_rope(keys, attention.head_dim, 1_000_000.0)?;
    rope.axes = read_mrope(keys, &rope, false)?;
    uniform(keys, place, MixerConfig::Attention(attention), dense(keys)?, rope)
}
