//! Describes what GR00T N1.7's `config.json` says: NVIDIA's own, or lerobot's, in which a policy of other sizes than the published one
//! has the keys of NVIDIA's under `sizes`. Qwen3-VL's config is a constant of the source there, which `backbone_config` takes the place of.

use std::borrow::Cow;
use std::sync::LazyLock;

use serde_json::{Value as Json, json};

/// NVIDIA's `model_type`, and lerobot's `type`.
const GROOT: &str = "Gr00tN1d7";
const LEROBOT_GROOT: &str = "groot";
/// The model that published policies begin with.
pub const COSMOS: &str = "nvidia/Cosmos-Reason2-2B";

/// `config.json` of Cosmos-Reason2-2B, as lerobot has it in its source.
static COSMOS_CONFIG: LazyLock<Json> = LazyLock::new(|| {
    json!({
        "model_type": "qwen3_vl", "image_token_id": 151_655, "video_token_id": 151_656,
        "vision_start_token_id": 151_652, "vision_end_token_id": 151_653, "tie_word_embeddings": true,
        "text_config": {
            "model_type": "qwen3_vl_text", "attention_bias": false, "attention_dropout": 0.0, "head_dim": 128,
            "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144,
            "max_position_embeddings": 262_144, "num_attention_heads": 16, "num_hidden_layers": 28,
            "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_theta": 5_000_000, "tie_word_embeddings": true,
            "rope_scaling": {"mrope_interleaved": true, "mrope_section": [24, 20, 20], "rope_type": "default"},
            "vocab_size": 151_936
        },
        "vision_config": {
            "model_type": "qwen3_vl", "deepstack_visual_indexes": [5, 11, 17], "depth": 24,
            "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1024, "in_channels": 3, "initializer_range": 0.02,
            "intermediate_size": 4096, "num_heads": 16, "num_position_embeddings": 2304, "out_hidden_size": 2048,
            "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2
        }
    })
});

/// Returns whether a `config.json` is GR00T N1.7's.
pub fn is_groot(config: &Json) -> bool {
    config["model_type"] == GROOT || config["model_type"].is_null() && config["type"] == LEROBOT_GROOT
}

/// The object that has the keys of NVIDIA's config; null where lerobot's says nothing of sizes.
pub fn groot_keys(config: &Json) -> &Json {
    if config["model_type"] == GROOT { config } else { &config["sizes"] }
}

/// Qwen3-VL's config of a policy.
pub fn groot_backbone(config: &Json) -> Cow<'_, Json> {
    match &groot_keys(config)["backbone_config"] {
        Json::Null => Cow::Owned(COSMOS_CONFIG.clone()),
        own => Cow::Borrowed(own),
    }
}
