//! The readers that families with a vision tower have in common.

use std::sync::Arc;

use loongforge_core::message::Tower;

use super::common::NamePrefix;
use super::decoders::read_decoder;
use super::text_family::TextFamily;
use crate::model::config::{ModelConfig, Tokens};
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::towers::ModelTower;
use crate::model::vision::VisionConfig;

type Result<T> = std::result::Result<T, ModelConfigError>;

/// Returns a decoder inside of a multimodal model: `keys` are the model's, `text_keys` the decoder's, whose family is `default` where it
/// has no `model_type`. The model's `tie_word_embeddings` goes before the decoder's.
pub(super) fn text(
    keys: &Keys<'_>,
    text_keys: &Keys<'_>,
    place: &NamePrefix,
    default: &TextFamily,
) -> Result<DecoderConfig> {
    let decoder = match text_keys.text_or("model_type")? {
        Some(_) => read_decoder(text_keys, place)?,
        None => default.read(text_keys, place)?,
    };
    tied(keys, decoder)
}

/// The model's `tie_word_embeddings` goes before the decoder's.
pub(super) fn tied(keys: &Keys<'_>, decoder: DecoderConfig) -> Result<DecoderConfig> {
    let tie_word_embeddings = keys.flag_or("tie_word_embeddings")?.unwrap_or(decoder.tie_word_embeddings);
    Ok(DecoderConfig { tie_word_embeddings, ..decoder })
}

/// Refuses a width of features, where the encoder's config has one, that is not the decoder's.
pub(super) fn check_width(vision_keys: &Keys<'_>, key: &str, decoder: &DecoderConfig) -> Result<()> {
    match vision_keys.size_or(key)? {
        Some(width) if width != decoder.hidden_size => {
            let must = format!("must equal text_config.hidden_size ({})", decoder.hidden_size);
            Err(vision_keys.inconsistent(key, width, must))
        }
        _ => Ok(()),
    }
}

/// Returns the model of these parts.
pub(super) fn model(
    model_type: &str,
    keys: &Keys<'_>,
    decoder: DecoderConfig,
    vision: VisionConfig,
    tokens: Tokens,
) -> Result<ModelConfig> {
    let tower = tower(keys, decoder.num_deepstack_layers(), vision, tokens)?;
    Ok(ModelConfig::new(model_type, decoder, vec![tower]))
}

/// Returns the tower of a model whose decoder has so many layers: one for every DeepStack level.
pub(super) fn tower(keys: &Keys<'_>, num_layers: usize, vision: VisionConfig, tokens: Tokens) -> Result<ModelTower> {
    if vision.deepstack.len() > num_layers {
        let found = format!("{:?}", vision.tower.deepstack);
        let must = format!("the decoder has only {num_layers} layers to add them to");
        return Err(keys.inconsistent("vision_config.deepstack_visual_indexes", found, must));
    }
    Ok(ModelTower { tower: Tower::Vision, family: Arc::new(vision), placeholders: tokens.placeholders() })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::config::ModelConfig;
    use crate::model::decoder::{Balance, FeedForwardConfig, LayerConfig, MixerConfig};
    use crate::nn::RopeAxes;

    fn names(config: &Value) -> Vec<String> {
        let config = ModelConfig::from_hf(config).unwrap();
        config.towers.specs().into_iter().map(|spec| spec.name).collect()
    }

    /// Configs published by Moonshot have other keys than transformers', and the patch embedding elsewhere.
    #[test]
    fn published_kimi_configs_are_read() {
        let config = json!({"model_type": "kimi_k25", "media_placeholder_token_id": 301, "text_config": {
                "model_type": "llama", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96,
                "num_hidden_layers": 1, "num_attention_heads": 4},
            "vision_config": {"vt_hidden_size": 48, "vt_intermediate_size": 80, "vt_num_attention_heads": 3,
                "vt_num_hidden_layers": 1, "init_pos_emb_height": 8, "init_pos_emb_width": 8, "init_pos_emb_time": 4,
                "merge_kernel_size": [2, 2], "merge_type": "sd2_tpool", "patch_size": 14, "text_hidden_size": 64,
                "pos_emb_type": "divided_fixed", "projector_ln_eps": 1e-5, "video_attn_type": "spatial_temporal"}});
        let names = names(&config);
        for name in ["vision_tower.patch_embed.proj.weight", "vision_tower.encoder.blocks.0.wqkv.weight"] {
            assert!(names.iter().any(|found| found == name), "{names:?}");
        }
        assert_eq!(ModelConfig::from_hf(&config).unwrap().inputs()[0].placeholders, [301]);
        let mut written_again = config.clone();
        written_again["video_token_id"] = json!(320);
        assert_eq!(ModelConfig::from_hf(&written_again).unwrap().inputs()[0].placeholders, [301]);
        let mut wrong = config.clone();
        wrong["vision_config"]["text_hidden_size"] = json!(7168);
        let message = ModelConfig::from_hf(&wrong).unwrap_err().to_string();
        assert!(message.contains("text_hidden_size is 7168, but must equal text_config.hidden_size (64)"), "{message}");
    }

    /// transformers passes `output_router_logits` on to none of these models' parts.
    #[test]
    fn inside_of_internvl_experts_are_not_balanced_by_their_own_config() {
        let config = json!({"model_type": "internvl", "image_token_id": 301, "text_config": {
                "model_type": "qwen3_moe", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96,
                "num_hidden_layers": 1, "num_attention_heads": 4, "num_experts": 4, "num_experts_per_tok": 2,
                "moe_intermediate_size": 48, "output_router_logits": true},
            "vision_config": {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 1,
                "num_attention_heads": 3}});
        assert_eq!(
            ModelConfig::from_hf(&config["text_config"]).unwrap().decoder().unwrap().balance.aux_loss_coef,
            0.001
        );
        assert_eq!(ModelConfig::from_hf(&config).unwrap().decoder().unwrap().balance, Balance::default());
    }

    /// Configs published by Baidu name the layers with experts by their ends, and the frequencies of frames by `freq_allocation`.
    #[test]
    fn published_ernie_configs_are_read() {
        let config = json!({"model_type": "ernie4_5_moe_vl", "im_patch_id": 301, "vocab_size": 320, "hidden_size": 64,
            "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "moe_num_experts": [4, 4], "moe_intermediate_size": [48, 24], "moe_k": 2, "moe_layer_start_index": [1, 1],
            "moe_layer_end_index": [4, 3], "moe_layer_interval": 1, "freq_allocation": 4,
            "vision_config": {"depth": 1, "hidden_size": 48, "num_heads": 3}});
        let read = ModelConfig::from_hf(&config).unwrap().decoder().unwrap().clone();
        assert_eq!(read.layers[0].rope.axes, RopeAxes::Three(vec![1, 2, 1, 2, 0, 0, 0, 0]));
        assert_eq!(read.pad_token_id, None);
        let routed = |layer: &&LayerConfig| matches!(layer.feed_forward, FeedForwardConfig::Moe(_));
        assert_eq!(read.layers.iter().filter(routed).count(), 2);
        let cases = [
            ("moe_layer_start_index", json!([1, 2])),
            ("moe_layer_end_index", json!([2, 1])),
            ("moe_layer_interval", json!(2)),
        ];
        for (key, value) in cases {
            let mut wrong = config.clone();
            wrong[key] = value;
            let message = ModelConfig::from_hf(&wrong).unwrap_err().to_string();
            assert!(message.contains(key), "{message}");
        }
    }

    /// Configs published by Qwen have the decoder's keys beside the others, and `in_chans`.
    #[test]
    fn published_qwen2_5_vl_configs_are_read() {
        let config = json!({"model_type": "qwen2_5_vl", "image_token_id": 301, "vocab_size": 320, "hidden_size": 64,
            "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
            "rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
            "tie_word_embeddings": true,
            "vision_config": {"depth": 1, "hidden_act": "silu", "hidden_size": 48, "intermediate_size": 80,
                "num_heads": 3, "in_chans": 3, "out_hidden_size": 64, "patch_size": 14, "spatial_merge_size": 2,
                "spatial_patch_size": 14, "window_size": 112, "fullatt_block_indexes": [0], "tokens_per_second": 2,
                "temporal_patch_size": 2}});
        assert!(names(&config).iter().any(|name| name == "visual.merger.ln_q.weight"));
        let read = ModelConfig::from_hf(&config).unwrap().decoder().unwrap().clone();
        assert!(read.tie_word_embeddings && read.has_three_axes());
        let mut nested = config.clone();
        nested["text_config"] = config.clone();
        nested["text_config"]["head_dim"] = json!(128);
        nested["text_config"]["rope_scaling"] = json!({"type": "mrope"});
        nested["tie_word_embeddings"] = json!(false);
        nested["text_config"]["num_hidden_layers"] = json!(30);
        nested["text_config"]["use_sliding_window"] = json!(true);
        let read = ModelConfig::from_hf(&nested).unwrap().decoder().unwrap().clone();
        assert!(read.tie_word_embeddings && read.norm.eps == 1e-5);
        // Of the first 80 layers none has a window.
        let has_none = |layer: &LayerConfig| matches!(&layer.mixer, MixerConfig::Attention(of) if of.window.is_none());
        assert!(read.layers.iter().all(has_none));
        assert_eq!(read.layers[0].rope.axes, RopeAxes::contiguous(&[16, 24, 24]));
        let mut wrong = config.clone();
        wrong["vision_config"]["window_size"] = json!(20);
        let message = ModelConfig::from_hf(&wrong).unwrap_err().to_string();
        assert!(message.contains("vision_config.window_size is 20, but must be at least"), "{message}");
    }
}
