use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::model::config::ModelConfig;
use crate::params::{ParamSpec, Role};

/// Returns the published policy, whose Florence-2 is described as its first release does.
fn published() -> Value {
    let camera = json!({"type": "VISUAL", "shape": [3, 256, 256]});
    json!({
        "type": "xvla", "chunk_size": 30, "n_action_steps": 30, "hidden_size": 1024, "depth": 24, "max_state_dim": 20,
        "resize_imgs_with_padding": [224, 224], "num_image_views": 3, "tokenizer_max_length": 50,
        "input_features": {"observation.images.image": camera, "observation.images.image2": camera},
        "florence_config": {
            "vision_config": {
                "model_type": "davit", "drop_path_rate": 0.1, "enable_checkpoint": false, "dim_embed": [256, 512, 1024, 2048],
                "num_heads": [8, 16, 32, 64], "num_groups": [8, 16, 32, 64], "projection_dim": 1024,
                "image_pos_embed": {"type": "learned_abs_2d", "max_pos_embeddings": 50},
                "visual_temporal_embedding": {"type": "COSINE", "max_temporal_embeddings": 100},
                "image_feature_source": ["spatial_avg_pool", "temporal_avg_pool"]
            },
            "text_config": {"model_type": "florence2_language", "vocab_size": 51_289, "d_model": 1024, "dropout": 0.1}
        }
    })
}

fn specs(config: &Value) -> BTreeMap<String, ParamSpec> {
    let model = ModelConfig::from_hf(config).unwrap();
    model.specs().into_iter().map(|spec| (spec.name.clone(), spec)).collect()
}

#[test]
fn published_configs_have_published_names_and_sizes() {
    let found = specs(&published());
    for (name, shape) in [
        ("vlm.vision_tower.convs.0.conv.weight", vec![256, 3, 7, 7]),
        ("vlm.vision_tower.convs.1.norm.weight", vec![256]),
        ("vlm.vision_tower.blocks.2.8.spatial_block.window_attn.qkv.weight", vec![3072, 1024]),
        ("vlm.vision_tower.blocks.3.0.channel_block.channel_attn.proj.bias", vec![2048]),
        ("vlm.vision_tower.blocks.0.0.channel_block.conv2.weight", vec![256, 1, 3, 3]),
        ("vlm.multi_modal_projector.image_projection.weight", vec![1024, 2048]),
        ("vlm.multi_modal_projector.image_position_embed.row_embeddings.weight", vec![50, 1024]),
        ("vlm.multi_modal_projector.visual_temporal_embed.pos_idx_to_embed", vec![100, 2048]),
        ("vlm.language_model.encoder.embed_tokens.weight", vec![51_289, 1024]),
        ("vlm.language_model.encoder.embed_positions.weight", vec![1026, 1024]),
        ("vlm.language_model.encoder.layers.11.fc1.weight", vec![4096, 1024]),
        ("transformer.blocks.23.attn.qkv.weight", vec![3072, 1024]),
        ("transformer.action_encoder.fc.weight", vec![30, 72 * 1024]),
        ("transformer.action_decoder.bias.weight", vec![30, 20]),
        ("transformer.soft_prompt_hub.weight", vec![30, 32 * 1024]),
        ("transformer.pos_emb", vec![1, 512, 1024]),
        ("transformer.vlm_proj.bias", vec![1024]),
    ] {
        assert_eq!(found[&format!("model.{name}")].shape, shape, "{name}");
    }
    let model = ModelConfig::from_hf(&published()).unwrap();
    let chunk = model.foundation.as_policy().unwrap().chunk();
    assert_eq!((chunk.horizon, chunk.action_dim, chunk.vocab_size, chunk.image_token), (30, 20, 51_289, 51_289));
}

#[test]
fn parts_are_frozen_as_the_config_says() {
    let frozen = |key: &str, value: bool| {
        let mut config = published();
        config[key] = json!(value);
        let found = specs(&config).into_values().filter(|spec| spec.role == Role::Frozen).map(|spec| spec.name);
        // Sinusoids never have a gradient.
        found.filter(|name| !name.ends_with("pos_idx_to_embed")).collect::<Vec<_>>()
    };
    assert!(frozen("freeze_vision_encoder", false).is_empty());
    for (key, value, prefix, except) in [
        ("freeze_vision_encoder", true, "model.vlm.vision_tower.", "-"),
        ("freeze_language_encoder", true, "model.vlm.language_model.", "-"),
        ("train_policy_transformer", false, "model.transformer.", "soft_prompt"),
        ("train_soft_prompts", false, "model.transformer.soft_prompt_hub.", "-"),
    ] {
        let is_of = |name: &String| name.starts_with(prefix) && !name.contains(except);
        let all: Vec<String> = specs(&published()).into_keys().filter(is_of).collect();
        let mut found = frozen(key, value);
        found.sort();
        assert_eq!(found, all, "{key}");
    }
}

#[test]
fn what_is_not_implemented_is_named() {
    for (pointer, value, expected) in [
        ("/n_obs_steps", json!(2), "n_obs_steps is 2; supported: 1"),
        ("/dtype", json!("float16"), r#"dtype is "float16""#),
        ("/pad_language_to", json!("longest"), r#"pad_language_to is "longest"; supported: "max_length""#),
        ("/action_mode", json!("wheel"), "action_mode is \"wheel\", but `action_mode` is \"wheel\"; supported: ee6d"),
        ("/max_state_dim", json!(19), "max_state_dim is 19, but this action_mode masks number 19 of the state"),
        ("/use_proprio", json!(false), "use_proprio is false, but this action_mode masks"),
        ("/max_len_seq", json!(229), "max_len_seq is 229, but actions, prompt and pictures take 230 rows"),
        ("/num_heads", json!(7), "num_heads is 7, but must divide hidden_size (1024)"),
        ("/num_image_views", json!(65), "num_image_views is 65, but must be at most 64"),
        ("/resize_imgs_with_padding", json!([224, 222]), "must be multiples of 4"),
        ("/resize_imgs_with_padding", json!([224]), "must be rows and columns"),
        ("/resize_imgs_with_padding", json!([224, 1632]), "the last stage has 7 x 51 places"),
        ("/florence_config/tie_word_embeddings", json!(false), "florence_config.tie_word_embeddings is false"),
        (
            "/florence_config/text_config/d_model",
            json!(512),
            "d_model is 512, but must be vision_config.projection_dim (1024)",
        ),
        ("/florence_config/text_config/encoder_layerdrop", json!(0.1), "encoder_layerdrop is 0.1; supported: 0.0"),
        ("/florence_config/text_config/dropout", json!(1.0), "dropout is 1, but must be at least 0 and below 1"),
        (
            "/florence_config/text_config/max_position_embeddings",
            json!(90),
            "tokenizer_max_length is 50, but a picture",
        ),
        ("/florence_config/vision_config/depths", json!([1, 1]), "patch_prenorm"),
        (
            "/florence_config/vision_config/num_groups",
            json!([8, 16, 32, 3]),
            "num_groups is 3, but must divide dim_embed",
        ),
        ("/florence_config/vision_config/patch_stride", json!([4, 2, 0, 2]), "must be 4 numbers from 1 on"),
        ("/florence_config/vision_config/image_pos_embed/type", json!("sine"), r#"image_pos_embed.type is "sine""#),
        ("/florence_config/vision_config/image_feature_source", json!(["last_frame"]), "image_feature_source is"),
    ] {
        let mut config = published();
        let (holder, key) = pointer.rsplit_once('/').unwrap();
        config.pointer_mut(holder).unwrap()[key] = value;
        let message = ModelConfig::from_hf(&config).unwrap_err().to_string();
        assert!(message.contains(expected), "{message:?} lacks {expected:?}");
    }
}
