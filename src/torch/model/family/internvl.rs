//! InternVL 2.5, 3 and 3.5: tiles through InternViT and a pixel shuffle before any language model, as transformers
//! stores it (`InternVLForConditionalGeneration`) and as the original checkpoints do (`InternVLChatModel`).

use serde_json::json;

use super::common::NamePrefix;
use super::experts::unbalanced;
use super::{qwen2, vision};
use crate::model::config::{ModelConfig, Tokens};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::vision::intern::{self, InternNames, PixelShuffle};
use crate::nn::Activation;

type Result<T> = std::result::Result<T, ModelConfigError>;

/// Reads an `InternVLConfig`.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    keys.only("vision_feature_layer", &[json!(-1)])?;
    keys.only("vision_feature_select_strategy", &[json!("default")])?;
    let place = NamePrefix::new("language_model.model.", "language_model.");
    let decoder = unbalanced(vision::text(keys, &keys.section("text_config")?, &place, &qwen2::FAMILY)?);
    let shuffle = PixelShuffle {
        merge: merge(keys)?,
        activation: intern::projector_activation(keys)?,
        outputs: decoder.hidden_size,
    };
    let (tower, projector) = ("vision_tower.", "multi_modal_projector.");
    let names = InternNames::Transformers;
    let encoder = intern::read(&keys.section("vision_config")?, names, tower, projector, &shuffle)?;
    let tokens = Tokens::read(keys, decoder.vocab_size)?;
    vision::model("internvl", keys, decoder, encoder, tokens)
}

/// Reads an `InternVLChatConfig`. It does not say which token stands for pictures: `image_token_id` must be added, the id of
/// `<IMG_CONTEXT>`.
pub(in crate::model) fn read_original(keys: &Keys<'_>) -> Result<ModelConfig> {
    keys.only("select_layer", &[json!(-1)])?;
    keys.only("ps_version", &[json!("v2")])?;
    let place = NamePrefix::new("language_model.model.", "language_model.");
    let text_keys = keys.section("llm_config")?;
    let mut decoder = unbalanced(vision::text(keys, &text_keys, &place, &qwen2::FAMILY)?);
    // The language model, which is made of its own config, ties by its own key as well.
    decoder.tie_word_embeddings |= text_keys.flag_or("tie_word_embeddings")?.unwrap_or(false);
    let shuffle = PixelShuffle { merge: merge(keys)?, activation: Activation::Gelu, outputs: decoder.hidden_size };
    let names = InternNames::Original;
    let encoder = intern::read(&keys.section("vision_config")?, names, "vision_model.", "mlp1.", &shuffle)?;
    let tokens = Tokens::read(keys, decoder.vocab_size)?;
    vision::model("internvl_chat", keys, decoder, encoder, tokens)
}

/// Returns how many patches a side become one feature: the inverse of `downsample_ratio`.
fn merge(keys: &Keys<'_>) -> Result<i64> {
    let ratio = keys.number_or("downsample_ratio")?.unwrap_or(0.5);
    let merge = (1.0 / ratio).round();
    if !(1.0..=64.0).contains(&merge) || (merge * ratio - 1.0).abs() > 1e-9 {
        return Err(keys.inconsistent("downsample_ratio", ratio, "must be 1 divided by an integer"));
    }
    Ok(merge as i64)
}

#[cfg(test)]
mod tests {
    use crate::model::ModelConfig;
    use serde_json::{Value, json};

    #[test]
    fn either_key_ties_the_original_layout() {
        let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/internvl2.5_chat-seed1/config.json");
        let config: Value = serde_json::from_slice(&std::fs::read(fixture).unwrap()).unwrap();
        let tied = |whole: Value, own: Value| {
            let mut config = config.clone();
            config["tie_word_embeddings"] = whole;
            config["llm_config"]["tie_word_embeddings"] = own;
            ModelConfig::from_hf(&config).unwrap().decoder().unwrap().tie_word_embeddings
        };
        assert!(!tied(json!(false), json!(false)) && !tied(json!(null), json!(null)));
        assert!(tied(json!(true), json!(false)) && tied(json!(false), json!(true)) && tied(json!(null), json!(true)));
    }
}
