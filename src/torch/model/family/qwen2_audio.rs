//! Qwen2-Audio (`Qwen2AudioForConditionalGeneration`): Whisper's encoder with pairs of states averaged, before a Qwen2
//! decoder.

use serde_json::json;

use super::common::NamePrefix;
use super::{audio, qwen2};
use crate::model::audio::whisper;
use crate::model::config::ModelConfig;
use crate::model::keys::{Keys, ModelConfigError};

/// Reads the `config.json` of `Qwen2AudioForConditionalGeneration`.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig, ModelConfigError> {
    let text_keys = keys.section("text_config")?;
    text_keys.only("model_type", &[json!("qwen2")])?;
    // Published configs leave out what is `Qwen2Config`'s default.
    let filled = text_keys.filled(&json!({"hidden_size": 4096, "intermediate_size": 22016, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 32, "vocab_size": 151_936}));
    let text_keys = text_keys.instead(&filled);
    // The reference ties the head in neither place.
    text_keys.only("tie_word_embeddings", &[json!(false)])?;
    let decoder = qwen2::FAMILY.read(&text_keys, &NamePrefix::new("language_model.model.", "language_model."))?;
    let audio_keys = keys.section("audio_config")?;
    let encoder = whisper::read_qwen2(&audio_keys, "audio_tower.", "multi_modal_projector.", decoder.hidden_size)?;
    audio::model("qwen2_audio", keys, decoder, encoder, "audio_token_index")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::ModelConfig;

    fn read(audio: Value) -> String {
        let text = json!({"model_type": "qwen2", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2});
        let config = json!({"model_type": "qwen2_audio", "audio_token_index": 301, "text_config": text,
            "audio_config": audio});
        format!("{:?}", ModelConfig::from_hf(&config).unwrap())
    }

    #[test]
    fn a_tower_without_sizes_has_those_of_the_class() {
        let sizes = json!({"num_mel_bins": 128, "d_model": 1280, "encoder_layers": 32, "encoder_attention_heads": 20,
            "encoder_ffn_dim": 5120, "max_source_positions": 1500});
        assert_eq!(read(json!({"model_type": "qwen2_audio_encoder"})), read(sizes));
        let few = |key: &str| read(json!({"model_type": "qwen2_audio_encoder", key: 2}));
        assert_eq!(few("num_hidden_layers"), few("encoder_layers"));
    }
}
