//! Gemma 3 with a vision tower (`Gemma3ForConditionalGeneration`): SigLIP's tower, the mean of a square of patches, a norm and a
//! matrix before Gemma 3's text model, in which the tokens of a picture see each other.

use serde_json::{Value, json};

use super::common::NamePrefix;
use super::{gemma3_text, vision};
use crate::model::config::{ModelConfig, Tokens};
use crate::model::decoder::{DecoderConfig, Sees};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::vision::keys::square;
use crate::model::vision::parts::read_tower;
use crate::model::vision::{ProjectorConfig, ProjectorKind, VisionConfig};

type Result<T> = std::result::Result<T, ModelConfigError>;

const SIGLIP: &str = "siglip_vision_model";

/// Reads the `config.json` of `Gemma3ForConditionalGeneration`.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    let place = NamePrefix::new("language_model.model.", "language_model.");
    let text = keys.section("text_config")?;
    text.only("model_type", &[json!(gemma3_text::FAMILY.model_type)])?;
    // The class does not read this key.
    text.only("final_logit_softcapping", &[])?;
    let mut decoder = gemma3_text::FAMILY.read(&text.instead(&text.filled(&sizes())), &place)?;
    // The text model's own key is not read.
    decoder.tie_word_embeddings = keys.flag_or("tie_word_embeddings")?.unwrap_or(true);
    let encoder = encoder(keys, &decoder)?;
    let key = if keys.has("image_token_index") { "image_token_index" } else { "image_token_id" };
    // Published configs leave it out where it is the class's.
    let filled = keys.filled(&json!({"image_token_index": 262_144}));
    let tokens = Tokens::with_image(&keys.instead(&filled), key, decoder.vocab_size)?;
    decoder.sees = Sees::Runs(tokens.image.into_iter().collect());
    vision::model("gemma3", keys, decoder, encoder, tokens)
}

/// Returns SigLIP's tower and what makes `mm_tokens_per_image` features of its patches.
fn encoder(keys: &Keys<'_>, decoder: &DecoderConfig) -> Result<VisionConfig> {
    let vision = keys.section("vision_config")?;
    let num_tokens = keys.size_or("mm_tokens_per_image")?.unwrap_or(256);
    let tokens_a_side = (num_tokens as f64).sqrt() as i64;
    let patches_a_side = square(&vision, "image_size")?.unwrap_or(224) / square(&vision, "patch_size")?.unwrap_or(16);
    if tokens_a_side.pow(2) != num_tokens || patches_a_side % tokens_a_side != 0 {
        let must = format!("must be the square of a number that divides the {patches_a_side} patches of a side");
        return Err(keys.inconsistent("mm_tokens_per_image", num_tokens, must));
    }
    let merge = patches_a_side / tokens_a_side;
    let encoder = siglip(&vision, merge, decoder.hidden_size)?;
    let eps = vision.number_or("layer_norm_eps")?.unwrap_or(1e-6);
    let projector = ProjectorConfig {
        kind: ProjectorKind::Mean { norm: "mm_soft_emb_norm", eps, matrix: "mm_input_projection_weight" },
        ..encoder.projector
    };
    Ok(VisionConfig { projector, ..encoder })
}

/// Returns SigLIP's tower without its own head, as models of Google have it: the states behind the last norm, squares of `merge` patches
/// a side for features of this `width`.
pub(super) fn siglip(vision: &Keys<'_>, merge: i64, width: i64) -> Result<VisionConfig> {
    vision.only("model_type", &[json!(SIGLIP)])?;
    vision.only("vision_feature_layer", &[])?;
    vision.only("spatial_merge_size", &[])?;
    if vision.flag_or("vision_use_head")?.unwrap_or(true) {
        let must = "must be false: the tower's own head is not used, and is not read";
        return Err(vision.inconsistent("vision_use_head", true, must));
    }
    let mut filled = vision.filled(&json!({"model_type": SIGLIP}));
    filled["spatial_merge_size"] = json!(merge);
    read_tower(&vision.instead(&filled), "vision_tower.", "multi_modal_projector.", width)
}

/// Returns the sizes of the text model's class: published configs have those alone that differ.
fn sizes() -> Value {
    json!({"vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4})
}

#[cfg(test)]
mod tests {
    use loongforge_core::config::ContextAttention;
    use loongforge_core::message::{Grid, Tower};
    use serde_json::{Value, json};

    use crate::model::config::ModelConfig;
    use crate::model::decoder::{MixerConfig, Sees};

    /// Returns the config of Gemma 3 4B as published by Google.
    fn published() -> Value {
        json!({"model_type": "gemma3", "boi_token_index": 255_999, "eoi_token_index": 256_000, "eos_token_id": [1, 106],
            "image_token_index": 262_144, "initializer_range": 0.02, "mm_tokens_per_image": 256,
            "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
            "vision_config": {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304,
                "model_type": "siglip_vision_model", "num_attention_heads": 16, "num_hidden_layers": 27,
                "patch_size": 14, "vision_use_head": false}})
    }

    #[test]
    fn a_published_config_leaves_out_what_is_usual() {
        let model = ModelConfig::from_hf(&published()).unwrap();
        let decoder = model.decoder().unwrap();
        assert_eq!((decoder.vocab_size, decoder.hidden_size, decoder.num_layers()), (262_208, 2560, 34));
        assert!(decoder.tie_word_embeddings && decoder.sees == Sees::Runs(vec![262_144]));
        let MixerConfig::Attention(attention) = &decoder.layers[0].mixer else { unreachable!("Gemma attends") };
        assert_eq!((attention.num_heads, attention.num_kv_heads, attention.window), (8, 4, Some(1024)));
        assert_eq!(model.towers.num_features(Tower::Vision, Grid { t: 1, h: 64, w: 64 }), 256);
        let specs = model.towers.specs();
        let of = |name: &str| &specs.iter().find(|spec| spec.name == name).unwrap_or_else(|| panic!("no {name}")).shape;
        assert_eq!(*of("multi_modal_projector.mm_input_projection_weight"), [1152, 2560]);
        assert_eq!(*of("multi_modal_projector.mm_soft_emb_norm.weight"), [1152]);
    }

    #[test]
    fn rows_are_whole_where_tokens_see_tokens_behind_them() {
        let model = ModelConfig::from_hf(&published()).unwrap();
        let decoder = model.decoder().unwrap();
        let refused = decoder.check_context(2, ContextAttention::Ring).unwrap_err().to_string();
        assert!(refused.contains("attend to later tokens") && refused.contains("context_parallel to 1"), "{refused}");
        assert!(decoder.needs_whole_rows().is_some());
    }

    #[test]
    fn what_is_not_implemented_is_named() {
        for (pointer, value, expected) in [
            ("/mm_tokens_per_image", json!(255), "mm_tokens_per_image is 255, but must be the square"),
            ("/mm_tokens_per_image", json!(9), "mm_tokens_per_image is 9, but must be the square"),
            ("/vision_config/vision_use_head", json!(true), "vision_config.vision_use_head is true, but must be false"),
            (
                "/vision_config/model_type",
                json!("clip_vision_model"),
                "vision_config.model_type is \"clip_vision_model\"",
            ),
            ("/text_config/model_type", json!("gemma2"), "text_config.model_type is \"gemma2\""),
            ("/image_token_index", json!(262_208), "image_token_index is 262208, but must be below"),
        ] {
            let mut config = published();
            *config.pointer_mut(pointer).unwrap() = value;
            let message = ModelConfig::from_hf(&config).unwrap_err().to_string();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
        let mut config = published();
        config["text_config"]["final_logit_softcapping"] = json!(30.0);
        let message = ModelConfig::from_hf(&config).unwrap_err().to_string();
        assert!(message.contains("text_config.final_logit_softcapping is 30.0"), "{message}");
    }
}
