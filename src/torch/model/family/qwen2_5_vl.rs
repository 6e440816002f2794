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

/// Returns the model with another tower, whose config has the width of features under `width_key`. Published configs have the decoder's
/// keys beside the others, not in `text_config`.
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::ModelConfig;

    fn read(model_type: &str, vision: Value) -> String {
        let config = json!({
            "model_type": model_type, "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "image_token_id": 301,
            "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}, "vision_config": vision
        });
        format!("{:?}", ModelConfig::from_hf(&config).unwrap())
    }

    #[test]
    fn towers_of_folders_that_leave_out_defaults_are_those_of_the_class() {
        let short = json!({"hidden_size": 1280, "in_chans": 3, "model_type": "qwen2_5_vl", "spatial_patch_size": 14,
            "tokens_per_second": 2});
        let whole = json!({"depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420,
            "num_heads": 16, "in_chans": 3, "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14,
            "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31], "tokens_per_second": 2,
            "temporal_patch_size": 2});
        assert_eq!(read("qwen2_5_vl", short), read("qwen2_5_vl", whole));
        let short = json!({"hidden_size": 64, "in_chans": 3, "model_type": "qwen2_vl", "spatial_patch_size": 14});
        let whole = json!({"depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "in_chans": 3,
            "hidden_size": 64, "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14,
            "temporal_patch_size": 2});
        assert_eq!(read("qwen2_vl", short), read("qwen2_vl", whole));
    }
}
