//! Qwen3-VL, dense (`Qwen3VLForConditionalGeneration`): a vision transformer with DeepStack before a Qwen3 decoder whose
//! positions have three axes.

use super::common::{Place, dense, only_full_attention, uniform};
use super::qwen3::heads;
use super::vision;
use crate::model::decoder::{DecoderConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::registry::{ModelConfig, Tokens};
use crate::model::rope_config::{read_mrope, read_rope};
use crate::model::vision::qwen3;

/// The default where a config has none.
pub(super) const MROPE_SECTION: [i64; 3] = [24, 20, 20];

pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig, ModelConfigError> {
    let decoder = read_text(&keys.section("text_config")?, &Place::new("model.language_model.", ""))?;
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

/// The decoder (`Qwen3VLTextModel`).
pub(in crate::model) fn read_text(keys: &Keys<'_>, place: &Place) -> Result<DecoderConfig, ModelConfigError> {
    only_full_attention(keys)?;
    let attention = heads(keys, Some(128))?;
    let mut rope = read_rope(keys, attention.head_dim, 500_000.0)?;
    rope.axes = read_mrope(keys, &rope, MROPE_SECTION, true)?;
    uniform(keys, place, MixerConfig::Attention(attention), dense(keys)?, rope)
}
