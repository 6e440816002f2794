//! The `config.json` of GR00T: NVIDIA's own of N1.6 and N1.7, or for N1.7 lerobot's, in which a policy of other sizes than the published
//! one has the keys of NVIDIA's under `sizes`. The config of the vision-language model is a constant of the source there (N1.7) or a file
//! beside the code (N1.6), which `backbone_config` takes the place of.

use std::borrow::Cow;
use std::sync::LazyLock;

use serde_json::{Value as Json, json};

/// lerobot's `type`.
const LEROBOT_GROOT: &str = "groot";

/// The version of NVIDIA's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrootVersion {
    /// Eagle 3 (SigLIP 2 and Qwen3) before the actions.
    N1_6,
    /// Qwen3-VL before the actions.
    N1_7,
}

impl GrootVersion {
    /// Returns the version of a `config.json`, NVIDIA's or lerobot's; `None`: it is of another model.
    pub fn of(config: &Json) -> Option<Self> {
        match config["model_type"].as_str() {
            Some(name) => [Self::N1_6, Self::N1_7].into_iter().find(|version| version.model_type() == name),
            None => (config["model_type"].is_null() && config["type"] == LEROBOT_GROOT).then_some(Self::N1_7),
        }
    }

    /// Returns NVIDIA's `model_type`.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::N1_6 => "Gr00tN1d6",
            Self::N1_7 => "Gr00tN1d7",
        }
    }

    /// Actions of a sample, and numbers of an action or a state, where a config does not say: the defaults of NVIDIA's class.
    pub fn horizon_and_width(self) -> (usize, usize) {
        match self {
            Self::N1_6 => (16, 29),
            Self::N1_7 => (40, 132),
        }
    }

    /// Returns the model that published policies begin with (`model_name`).
    pub fn backbone(self) -> &'static str {
        match self {
            Self::N1_6 => "nvidia/Eagle-Block2A-2B-v2",
            Self::N1_7 => "nvidia/Cosmos-Reason2-2B",
        }
    }
}

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

/// `config.json` of Eagle-Block2A-2B-v2, as Isaac-GR00T has it beside its source.
static EAGLE_CONFIG: LazyLock<Json> = LazyLock::new(|| {
    json!({
        "model_type": "eagle_3_vl", "image_token_index": 151_669, "downsample_ratio": 0.5, "select_layer": -1,
        "text_config": {
            "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
            "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
            "intermediate_size": 6144, "max_position_embeddings": 40_960, "num_attention_heads": 16,
            "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000,
            "tie_word_embeddings": true, "vocab_size": 151_680
        },
        "vision_config": {
            "model_type": "siglip2_vision_model", "attention_dropout": 0.0, "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 1152, "intermediate_size": 4304, "layer_norm_eps": 1e-6, "num_attention_heads": 16,
            "num_channels": 3, "num_hidden_layers": 27, "num_patches": 256, "patch_size": 14, "use_rope": false,
            "use_windows_attn": false
        }
    })
});

/// Returns whether a `config.json` is GR00T's.
pub fn is_groot(config: &Json) -> bool {
    GrootVersion::of(config).is_some()
}

/// Returns the object that has the keys of NVIDIA's config; null where lerobot's says nothing of sizes.
pub fn groot_keys(config: &Json) -> &Json {
    if config["model_type"].is_null() { &config["sizes"] } else { config }
}

/// Returns the config of a policy's vision-language model.
pub fn groot_backbone(config: &Json) -> Cow<'_, Json> {
    match &groot_keys(config)["backbone_config"] {
        Json::Null if GrootVersion::of(config) == Some(GrootVersion::N1_6) => Cow::Owned(EAGLE_CONFIG.clone()),
        Json::Null => Cow::Owned(COSMOS_CONFIG.clone()),
        own => Cow::Borrowed(own),
    }
}
