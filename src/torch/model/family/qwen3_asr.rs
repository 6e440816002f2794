//! Qwen3-ASR (`Qwen3ASRForConditionalGeneration`): Qwen3-Omni's audio tower before a dense Qwen3 decoder. Checkpoints in the
//! layout of transformers (`Qwen3-ASR-1.7B-hf`).

use super::common::NamePrefix;
use super::{audio, qwen3, vision};
use crate::model::audio::qwen3 as audio_tower;
use crate::model::config::ModelConfig;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};

/// Reads the `config.json` of `Qwen3ASRForConditionalGeneration`.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig, ModelConfigError> {
    let text_keys = keys.section("text_config")?;
    let decoder = vision::text(keys, &text_keys, &NamePrefix::new("model.language_model.", ""), &qwen3::FAMILY)?;
    let tie_word_embeddings = keys.flag_or("tie_word_embeddings")?.unwrap_or(true);
    let decoder = DecoderConfig { tie_word_embeddings, ..decoder };
    let audio_keys = keys.section("audio_config")?;
    vision::check_width(&audio_keys, "output_dim", &decoder)?;
    let (prefixes, maps) = (["model.audio_tower.", "model.multi_modal_projector."], ["linear_1", "linear_2"]);
    let encoder = audio_tower::read(&audio_keys, prefixes[0], prefixes[1], maps, decoder.hidden_size)?;
    audio::model("qwen3_asr", keys, decoder, encoder, "audio_token_id")
}
