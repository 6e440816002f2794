//! Heads of keys and values of configs that do not say how many.

use serde_json::{Value, json};

use crate::model::keys::Keys;

/// Heads of keys and values that transformers' class takes where a config does not say. The other classes have as many as of
/// queries.
const KV_HEADS: &[(&str, i64)] = &[
    ("ernie4_5", 2),
    ("ernie4_5_moe", 4),
    ("ernie4_5_vl_moe_text", 4),
    ("gemma2", 4),
    ("gemma3_text", 4),
    ("glm4_moe", 8),
    ("gpt_oss", 8),
    ("minimax_m2", 8),
    ("mistral", 8),
    ("mixtral", 8),
    ("qwen2_5_omni_text", 4),
    ("qwen2_5_vl_text", 8),
    ("qwen2_vl_text", 8),
    ("qwen3_5_moe_text", 2),
    ("qwen3_5_text", 4),
    ("qwen3_moe", 4),
    ("qwen3_next", 2),
    ("qwen3_omni_moe_text", 4),
    ("smollm3", 4),
];

/// The config of a decoder with the heads of keys and values that its class has where the key is absent. Null stays: it means as
/// many as of queries.
pub(super) fn with_kv_heads(model_type: &str, keys: &Keys<'_>) -> Value {
    match KV_HEADS.iter().find(|(name, _)| *name == model_type) {
        Some((_, number)) => keys.filled(&json!({"num_key_value_heads": number})),
        None => keys.object().clone(),
    }
}
