//! LLaVA 1.5 and what is laid out like it (`LlavaForConditionalGeneration`): a vision tower, two maps, and a language model.

use serde_json::json;

use super::common::NamePrefix;
use super::decoders::read_decoder_or_llama;
use super::experts::unbalanced;
use super::vision;
use crate::model::config::{ModelConfig, Tokens};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::vision::intern::projector_activation;
use crate::model::vision::keys::feature_layer;
use crate::model::vision::{ProjectorConfig, VisionConfig, parts};

/// `LlavaConfig`'s, where a config has no `vision_feature_layer`.
const FEATURE_LAYER: i64 = -2;
/// Blocks of a tower whose config says nothing.
const NUM_BLOCKS: i64 = 12;

/// Reads the `config.json` of `LlavaForConditionalGeneration`.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig, ModelConfigError> {
    let place = NamePrefix::new("language_model.model.", "language_model.");
    let (text, tower_keys) = (keys.section("text_config")?, keys.section("vision_config")?);
    let mut decoder = read_decoder_or_llama(&text, &place)?;
    if let Some(cap) = decoder.final_soft_cap {
        return Err(text.inconsistent(
            "final_logit_softcapping",
            cap,
            "must be null: the reference's class has no such cap",
        ));
    }
    // Either of the two ties.
    decoder.tie_word_embeddings |= keys.flag_or("tie_word_embeddings")?.unwrap_or(false);

    let mut tower = tower_keys.filled(&json!({"model_type": "clip_vision_model"}));
    let num_blocks = tower_keys.size_or("num_hidden_layers")?.unwrap_or(NUM_BLOCKS);
    if let Some(layers) = keys.value("vision_feature_layer").filter(|layers| layers.is_array()) {
        let must = "concatenated states of several layers are not supported: it must be one layer";
        return Err(keys.inconsistent("vision_feature_layer", layers, must));
    }
    tower["vision_feature_layer"] = json!(feature_layer(keys, num_blocks, Some(FEATURE_LAYER))?);
    let width = decoder.hidden_size;
    let encoder = parts::read_tower(&tower_keys.instead(&tower), "vision_tower.", "multi_modal_projector.", width)?;
    // States of a class token are no features here, and a first patch is one.
    let strategy = if encoder.tower.class.is_some() { "default" } else { "full" };
    if keys.text_or("vision_feature_select_strategy")?.unwrap_or("default") != strategy {
        let found = keys.value("vision_feature_select_strategy").cloned().unwrap_or(json!("default"));
        return Err(keys.unsupported("vision_feature_select_strategy", &found, &[json!(strategy)]));
    }
    keys.only("multimodal_projector_bias", &[json!(true)])?;
    let activation = projector_activation(keys)?;
    let ProjectorConfig { prefix, inputs, merge, initializer_range, .. } = encoder.projector;
    let projector = ProjectorConfig::two_maps(&prefix, [inputs, width], merge, activation, initializer_range);
    let encoder = VisionConfig { projector, ..encoder };
    let key = if keys.has("image_token_index") { "image_token_index" } else { "image_token_id" };
    let tokens = Tokens::with_image(keys, key, decoder.vocab_size)?;
    vision::model("llava", keys, unbalanced(decoder), encoder, tokens)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::config::ModelConfig;
    use crate::model::decoder::MixerConfig;

    fn published() -> Value {
        json!({"model_type": "llava", "image_token_index": 32000, "projector_hidden_act": "gelu", "pad_token_id": 32001,
            "vision_feature_layer": -2, "vision_feature_select_strategy": "default",
            "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "vocab_size": 32064},
            "vision_config": {"hidden_size": 1024, "image_size": 336, "intermediate_size": 4096,
                "model_type": "clip_vision_model", "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14,
                "projection_dim": 768, "vocab_size": 32000}})
    }

    #[test]
    fn a_published_config_leaves_out_what_is_usual() {
        let model = ModelConfig::from_hf(&published()).unwrap();
        let decoder = model.decoder().unwrap();
        assert_eq!((decoder.vocab_size, decoder.hidden_size, decoder.num_layers()), (32064, 4096, 32));
        assert!(matches!(&decoder.layers[0].mixer, MixerConfig::Attention(of) if of.num_heads == 32));
        let specs = model.towers.specs();
        let of = |name: &str| specs.iter().find(|spec| spec.name == name).unwrap_or_else(|| panic!("no {name}"));
        // The last block is stored and not computed.
        let last = of("vision_tower.vision_model.encoder.layers.23.mlp.fc1.weight");
        assert!(last.clone().frozen() == *last);
        let before = of("vision_tower.vision_model.encoder.layers.22.mlp.fc1.weight");
        assert!(before.clone().frozen() != *before);
        assert_eq!(of("multi_modal_projector.linear_2.weight").shape, [4096, 4096]);
    }

    #[test]
    fn sizes_that_two_classes_have_in_common_may_be_absent() {
        for (model_type, intermediate_size) in [("qwen2", 11008), ("mistral", 14336)] {
            let mut config = published();
            config["text_config"] =
                json!({"model_type": model_type, "intermediate_size": intermediate_size, "vocab_size": 32064});
            let model = ModelConfig::from_hf(&config).unwrap();
            let decoder = model.decoder().unwrap();
            assert_eq!((decoder.hidden_size, decoder.num_layers()), (4096, 32), "{model_type}");
        }
    }

    #[test]
    fn what_is_not_implemented_is_named() {
        for (key, value, expected) in [
            (
                "vision_feature_layer",
                json!([-2, -5]),
                "vision_feature_layer is [-2,-5], but concatenated states of several layers",
            ),
            ("vision_feature_layer", json!(30), "vision_feature_layer is 30, but must be one of the 24 blocks"),
            (
                "vision_feature_select_strategy",
                json!("full"),
                r#"vision_feature_select_strategy is "full"; supported: "default""#,
            ),
            ("multimodal_projector_bias", json!(false), "multimodal_projector_bias is false"),
            (
                "text_config",
                json!({"model_type": "gemma2", "vocab_size": 32064, "hidden_size": 16, "intermediate_size": 8,
                "num_hidden_layers": 1, "num_attention_heads": 4, "head_dim": 8, "query_pre_attn_scalar": 8}),
                "text_config.final_logit_softcapping is 30, but must be null",
            ),
            ("image_token_index", json!(32064), "image_token_index is 32064, but must be below"),
        ] {
            let mut config = published();
            config[key] = value;
            let message = ModelConfig::from_hf(&config).unwrap_err().to_string();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
