//! Voxtral (`VoxtralForConditionalGeneration`): Whisper's encoder on whole windows of 30 s, four states side by side to a
//! feature, before a Llama decoder.

use serde_json::json;

use super::common::NamePrefix;
use super::{audio, llama};
use crate::model::audio::whisper;
use crate::model::config::ModelConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::nn::Activation;

/// Reads the `config.json` of `VoxtralForConditionalGeneration`.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig, ModelConfigError> {
    let text_keys = keys.section("text_config")?;
    text_keys.only("model_type", &[json!("llama")])?;
    // `VoxtralConfig`'s own defaults, where they are not `LlamaConfig`'s.
    let filled = text_keys.filled(&json!({"vocab_size": 131_072, "hidden_size": 3072, "intermediate_size": 8192,
        "num_hidden_layers": 30, "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
        "rope_theta": 1e8, "head_dim": 128}));
    let text_keys = text_keys.instead(&filled);
    // The reference ties the head in neither place.
    text_keys.only("tie_word_embeddings", &[json!(false)])?;
    let decoder = llama::FAMILY.read(&text_keys, &NamePrefix::new("language_model.model.", "language_model."))?;
    let (audio_keys, prefixes) = (keys.section("audio_config")?, ["audio_tower.", "multi_modal_projector."]);
    let act = keys.activation_or("projector_hidden_act")?.unwrap_or(Activation::Gelu);
    let encoder = whisper::read_voxtral(&audio_keys, prefixes[0], prefixes[1], decoder.hidden_size, act)?;
    audio::model("voxtral", keys, decoder, encoder, "audio_token_id")
}
