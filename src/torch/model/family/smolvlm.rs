//! SmolVLM and SmolVLM2 (`SmolVLMForConditionalGeneration`) and what they were made from, Idefics 3
//! (`Idefics3ForConditionalGeneration`): SigLIP's tower with positions by each picture's own grid, a pixel shuffle and one linear
//! map before a Llama.

use serde_json::json;

use super::common::NamePrefix;
use super::decoders::read_decoder_or_llama;
use super::experts::unbalanced;
use super::vision;
use crate::model::config::{ModelConfig, Tokens};
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::vision::keys::square;
use crate::model::vision::parts::read_tower;
use crate::model::vision::{ProjectorConfig, ProjectorKind, VisionConfig};
use crate::nn::Resampling;

type Result<T> = std::result::Result<T, ModelConfigError>;

/// The accepted values of `vision_config.model_type`; transformers does not read it.
const TOWERS: [&str; 4] = ["smolvlm_vision", "smolvlm", "idefics3_vision", "idefics3"];

/// Reads the `config.json` of `SmolVLMForConditionalGeneration`.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    read_as("smolvlm", keys)
}

/// Reads the `config.json` of `Idefics3ForConditionalGeneration`, the same computation under other names.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read_idefics3(keys: &Keys<'_>) -> Result<ModelConfig> {
    read_as("idefics3", keys)
}

fn read_as(model_type: &str, keys: &Keys<'_>) -> Result<ModelConfig> {
    let place = NamePrefix::new("model.text_model.", "");
    let decoder = read_decoder_or_llama(&keys.section("text_config")?, &place)?;
    // The text model's own key is not read.
    let tie_word_embeddings = keys.flag_or("tie_word_embeddings")?.unwrap_or(false);
    let decoder = DecoderConfig { tie_word_embeddings, ..unbalanced(decoder) };
    let encoder = encoder(keys, decoder.hidden_size)?;
    let tokens = Tokens::with_image(keys, "image_token_id", decoder.vocab_size)?;
    vision::model(model_type, keys, decoder, encoder, tokens)
}

fn encoder(keys: &Keys<'_>, width: i64) -> Result<VisionConfig> {
    let vision = keys.section("vision_config")?;
    vision.only("model_type", &TOWERS.map(|name| json!(name)))?;
    vision.only("vision_feature_layer", &[])?;
    vision.only("spatial_merge_size", &[])?;
    let merge = keys.size_or("scale_factor")?.unwrap_or(2);
    // `SmolVLMVisionConfig`'s, where they are not SigLIP's.
    let defaults = json!({"hidden_size": 1152, "num_attention_heads": 16, "image_size": 224, "patch_size": 32});
    let mut filled = vision.filled(&defaults);
    filled["model_type"] = json!("siglip_vision_model");
    let own = vision.instead(&filled);
    let patches = square(&own, "image_size")?.unwrap_or(224) / square(&own, "patch_size")?.unwrap_or(32);
    if patches % merge != 0 {
        return Err(keys.inconsistent("scale_factor", merge, format!("must divide the {patches} patches of a side")));
    }
    filled["spatial_merge_size"] = json!(merge);
    let projector = "model.connector.modality_projection.";
    let mut encoder = read_tower(&vision.instead(&filled), "model.", projector, width)?;
    encoder.tower.positions.iter_mut().for_each(|table| table.resampling = Resampling::Bucketed);
    let kind = ProjectorKind::Linear { name: "proj", bias: false };
    encoder.projector = ProjectorConfig { kind, ..encoder.projector };
    Ok(encoder)
}

#[cfg(test)]
mod tests {
    use loongforge_core::message::{Grid, Tower};
    use serde_json::{Value, json};

    use crate::model::config::ModelConfig;

    /// Returns the config of SmolVLM2 2.2B as published by Hugging Face, without keys that say nothing of the model.
    fn published() -> Value {
        json!({"model_type": "smolvlm", "image_token_id": 49_190, "scale_factor": 3, "tie_word_embeddings": false,
            "vocab_size": 49_280, "text_config": {"head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192,
                "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 24, "num_key_value_heads": 32,
                "pad_token_id": 2, "rms_norm_eps": 1e-5, "rope_theta": 130_000.0, "vocab_size": 49_280},
            "vision_config": {"hidden_size": 1152, "image_size": 384, "intermediate_size": 4304,
                "max_image_size": {"longest_edge": 384}, "model_type": "smolvlm_vision", "num_attention_heads": 16,
                "num_hidden_layers": 27, "patch_size": 14, "use_base_siglip": false}})
    }

    #[test]
    fn a_published_config_is_read() {
        let mut config = published();
        for model_type in ["smolvlm", "idefics3"] {
            config["model_type"] = json!(model_type);
            let model = ModelConfig::from_hf(&config).unwrap();
            // 17 tiles of 27 patches a side.
            let grid = Grid { t: 17, h: 27, w: 27 };
            assert_eq!(model.towers.num_features(Tower::Vision, grid), 17 * 81);
            let specs = model.specs();
            let of =
                |name: &str| &specs.iter().find(|spec| spec.name == name).unwrap_or_else(|| panic!("no {name}")).shape;
            assert_eq!(*of("model.connector.modality_projection.proj.weight"), [2048, 1152 * 9]);
            assert_eq!(*of("model.vision_model.embeddings.position_embedding.weight"), [27 * 27, 1152]);
            assert_eq!(*of("model.text_model.embed_tokens.weight"), [49_280, 2048]);
            assert_eq!(*of("lm_head.weight"), [49_280, 2048]);
        }
    }

    #[test]
    fn what_does_not_go_together_is_named() {
        for (pointer, value, expected) in [
            ("/scale_factor", json!(2), "scale_factor is 2, but must divide the 27 patches"),
            ("/vision_config/model_type", json!("clip_vision_model"), "vision_config.model_type is"),
            ("/image_token_id", json!(49_280), "image_token_id is 49280, but must be below"),
        ] {
            let mut config = published();
            *config.pointer_mut(pointer).unwrap() = value;
            let message = ModelConfig::from_hf(&config).unwrap_err().to_string();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
