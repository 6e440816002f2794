//! MiniCPM-V 4.6 (`MiniCPMV4_6ForConditionalGeneration`): SigLIP's tower with a step that halves rows and columns, and a merger,
//! before a decoder of Qwen3.5 in which a token has one position.

use serde_json::json;

use super::common::NamePrefix;
use super::{qwen3_5_text, vision};
use crate::model::config::{ModelConfig, Tokens};
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::vision::minicpm;

/// The accepted value of `vision_config.model_type`; transformers does not read it.
const TOWER: &str = "minicpmv4_6_vision";

/// Reads the `config.json` of `MiniCPMV4_6ForConditionalGeneration`.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig, ModelConfigError> {
    let (text, vision_keys) = (keys.section("text_config")?, keys.section("vision_config")?);
    let decoder = vision::text(keys, &text, &NamePrefix::new("model.language_model.", ""), &qwen3_5_text::FAMILY)?;
    // The text model's own key is not read.
    let tie_word_embeddings = keys.flag_or("tie_word_embeddings")?.unwrap_or(false);
    let decoder = DecoderConfig { tie_word_embeddings, ..super::experts::unbalanced(decoder) };
    vision_keys.only("model_type", &[json!(TOWER)])?;
    let encoder = minicpm::read_with(&vision_keys, keys, "model.vision_tower.", "model.merger.", decoder.hidden_size)?;
    let tokens = Tokens::with_image(keys, "image_token_id", decoder.vocab_size)?;
    vision::model("minicpmv4_6", keys, decoder, encoder, tokens)
}

#[cfg(test)]
mod tests {
    use loongforge_core::message::{Grid, Tower};
    use serde_json::{Value, json};

    use crate::model::config::ModelConfig;

    /// Returns the config as published by OpenBMB, with fewer layers of the decoder.
    fn published() -> Value {
        json!({"model_type": "minicpmv4_6", "drop_vision_last_layer": false, "image_size": 1120, "image_token_id": 56,
            "video_token_id": 57, "tie_word_embeddings": true,
            "text_config": {"model_type": "qwen3_5_text", "vocab_size": 64, "hidden_size": 1024, "intermediate_size": 3584,
                "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
                "layer_types": ["full_attention"], "linear_num_key_heads": 16, "linear_num_value_heads": 16,
                "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
                    "mrope_interleaved": true, "mrope_section": [11, 11, 10]}},
            "vision_config": {"hidden_act": "gelu_pytorch_tanh", "hidden_size": 1152, "image_size": 980,
                "intermediate_size": 4304, "layer_norm_eps": 1e-6, "model_type": "minicpmv4_6_vision",
                "num_attention_heads": 16, "num_channels": 3, "num_hidden_layers": 27, "patch_size": 14}})
    }

    #[test]
    fn published_configs_are_read() {
        let mut config = published();
        let grid = Grid { t: 3, h: 32, w: 36 };
        for (mode, features) in [("16x", 3 * 72), ("4x", 3 * 288)] {
            config["downsample_mode"] = json!(mode);
            let model = ModelConfig::from_hf(&config).unwrap();
            assert_eq!(model.towers.num_features(Tower::Vision, grid), features);
            assert!(!model.decoder().unwrap().has_three_axes());
            let specs = model.specs();
            let of =
                |name: &str| &specs.iter().find(|spec| spec.name == name).unwrap_or_else(|| panic!("no {name}")).shape;
            assert_eq!(*of("model.merger.mlp.0.linear_2.weight"), [1024, 4 * 1152]);
            assert_eq!(*of("model.vision_tower.vit_merger.linear_1.weight"), [4 * 4304, 4 * 1152]);
            assert_eq!(*of("model.vision_tower.vit_merger.self_attn.out_proj.bias"), [1152]);
            assert_eq!(*of("model.vision_tower.embeddings.position_embedding.weight"), [70 * 70, 1152]);
            assert_eq!(*of("model.vision_tower.post_layernorm.bias"), [1152]);
        }
    }

    #[test]
    fn what_does_not_go_together_is_named() {
        for (pointer, key, value, expected) in [
            ("", "insert_layer_id", json!(27), "insert_layer_id is 27, but must be one of the 27 blocks"),
            ("/vision_config", "insert_layer_id", json!(3), "vision_config.insert_layer_id is 3, but must equal"),
            ("/vision_config", "window_kernel_size", json!([4, 4]), "must be [2, 2]"),
            ("", "merger_times", json!(2), "merger_times is 2"),
            ("", "downsample_mode", json!("8x"), "downsample_mode is \"8x\""),
        ] {
            let mut config = published();
            config.pointer_mut(pointer).unwrap()[key] = value;
            let message = ModelConfig::from_hf(&config).unwrap_err().to_string();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
