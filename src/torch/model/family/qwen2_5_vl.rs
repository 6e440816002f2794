//! Qwen2.5-VL (`Qwen2_5_VLForConditionalGeneration`): a tower with windows before a Qwen2.5 decoder whose positions have
//! three axes, one section of frequencies after the other.

use super::common::{Place, attention, dense, with_windows};
use super::vision;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::registry::{ModelConfig, Tokens};
use crate::model::rope_config::{read_mrope, read_rope};
use crate::model::vision::qwen2_5;
use crate::nn::NormConfig;

/// The default where a config does not say. For Qwen2 it is another number.
const MAX_WINDOW_LAYERS: i64 = 80;

/// Published configs have the decoder's keys beside the others, not in `text_config`.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig, ModelConfigError> {
    let vision_keys = keys.section("vision_config")?;
    let text_keys = keys.section_or("text_config")?.unwrap_or_else(|| keys.clone());
    let decoder = read_text(&text_keys, &Place::alone())?;
    // Either place may say so: configs of transformers 4 say it in `text_config` alone.
    let tie_word_embeddings = decoder.tie_word_embeddings || keys.flag_or("tie_word_embeddings")?.unwrap_or(false);
    let decoder = DecoderConfig { tie_word_embeddings, ..decoder };
    vision::check_width(&vision_keys, "out_hidden_size", &decoder)?;
    let encoder = qwen2_5::read(&vision_keys, "visual.", "visual.merger.", decoder.hidden_size)?;
    let tokens = Tokens::read(keys, decoder.vocab_size)?;
    vision::model("qwen2_5_vl", keys, decoder, encoder, tokens)
}

/// The decoder (`Qwen2_5_VLTextModel`).
pub(in crate::model) fn read_text(keys: &Keys<'_>, place: &Place) -> Result<DecoderConfig, ModelConfigError> {
    let mut attention = attention(keys)?;
    attention.qkv_bias = true;
    let mut rope = read_rope(keys, attention.head_dim, 1_000_000.0)?;
    rope.axes = read_mrope(keys, &rope, [16, 24, 24], false)?;
    let decoder = with_windows(keys, place, &attention, MAX_WINDOW_LAYERS, dense(keys)?, rope)?;
    let eps = keys.number_or("rms_norm_eps")?.unwrap_or(1e-5);
    Ok(DecoderConfig { norm: NormConfig { eps, ..decoder.norm }, ..decoder })
}
