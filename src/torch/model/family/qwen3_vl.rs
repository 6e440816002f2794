//! Qwen3-VL, dense (`Qwen3VLForConditionalGeneration`): a vision transformer with DeepStack before a Qwen3 decoder whose
//! positions have three axes.

use serde_json::{Value, json};

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

/// Returns the model of a decoder and the tower that Qwen3-VL, dense or not, and Qwen3.5 have before it.
pub(super) fn with_tower(
    model_type: &str,
    keys: &Keys<'_>,
    decoder: DecoderConfig,
) -> Result<ModelConfig, ModelConfigError> {
    let own = keys.section("vision_config")?;
    let filled = if model_type.starts_with("qwen3_vl") { with_levels(&own) } else { own.object().clone() };
    let vision_keys = own.instead(&filled);
    let decoder = vision::tied(keys, decoder)?;
    vision::check_width(&vision_keys, "out_hidden_size", &decoder)?;
    let encoder = qwen3::read(&vision_keys, "model.visual.", "model.visual.merger.", decoder.hidden_size)?;
    let tokens = Tokens::read(keys, decoder.vocab_size)?;
    vision::model(model_type, keys, decoder, encoder, tokens)
}

/// Returns a tower's config with the levels of DeepStack of its class where it has no key for them.
pub(super) fn with_levels(vision_keys: &Keys<'_>) -> Value {
    vision_keys.filled(&json!({"deepstack_visual_indexes": [8, 16, 24]}))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::ModelConfig;

    fn levels(changes: Value) -> Result<usize, String> {
        let text = json!({"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24,
            "rope_scaling": {"rope_type": "default", "mrope_section": [4, 4, 4]}});
        let mut vision = json!({"depth": 27, "hidden_size": 48, "intermediate_size": 80, "num_heads": 3});
        vision.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let config =
            json!({"model_type": "qwen3_vl", "image_token_id": 301, "text_config": text, "vision_config": vision});
        let model = ModelConfig::from_hf(&config).map_err(|error| error.to_string())?;
        Ok(model.inputs()[0].num_tensors - 1)
    }

    #[test]
    fn absent_levels_of_deepstack_are_those_of_the_class() {
        assert_eq!(levels(json!({})), Ok(3));
        assert_eq!(levels(json!({"deepstack_visual_indexes": [5]})), Ok(1));
        assert_eq!(levels(json!({"deepstack_visual_indexes": []})), Ok(0));
        let message = levels(json!({"depth": 3})).unwrap_err();
        assert!(message.contains("deepstack_visual_indexes is [8, 16, 24], but must be different blocks"), "{message}");
    }
}
