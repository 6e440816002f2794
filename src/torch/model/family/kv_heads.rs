//! Heads of keys and values of configs that do not say how many.

use serde_json::{Value, json};

use crate::model::keys::Keys;

/// Heads of keys and values that the config's class takes where a config does not say. The other decoders have as many as of queries,
/// or latents.
const KV_HEADS: &[(&str, i64)] = &[
    ("ernie4_5", 2),
    ("ernie4_5_moe", 4),
    ("ernie4_5_vl_moe_text", 4),
    ("gemma", 16),
    ("gemma2", 4),
    ("gemma3_text", 4),
    ("glm4_moe", 8),
    ("gpt_oss", 8),
    ("mimo", 32),
    ("minimax_m2", 8),
    ("mistral", 8),
    ("mixtral", 8),
    ("qwen2", 32),
    ("qwen2_5_omni_text", 4),
    ("qwen2_5_vl_text", 8),
    ("qwen2_vl_text", 8),
    ("qwen3", 32),
    ("qwen3_5_moe_text", 2),
    ("qwen3_5_text", 4),
    ("qwen3_moe", 4),
    ("qwen3_next", 2),
    ("qwen3_omni_moe_text", 4),
    ("qwen3_vl_moe_text", 16),
    ("qwen3_vl_text", 32),
    ("smollm3", 4),
];

/// The config of a decoder with the heads of keys and values that its class has where the key is absent, if that number divides the
/// heads of queries: else the reference cannot run, and there are as many as of queries. Null stays: it means as many as of queries.
pub(super) fn with_kv_heads(model_type: &str, keys: &Keys<'_>) -> Value {
    let divides = |number: i64| match keys.value("num_attention_heads").and_then(Value::as_i64) {
        Some(queries) => queries % number == 0,
        None => true,
    };
    match KV_HEADS.iter().find(|(name, number)| *name == model_type && divides(*number)) {
        Some((_, number)) => keys.filled(&json!({"num_key_value_heads": number})),
        None => keys.object().clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::with_kv_heads;
    use crate::model::keys::Keys;

    #[test]
    fn an_absent_number_is_that_of_the_class_where_it_fits() {
        let of = |model_type: &str, config: Value| {
            with_kv_heads(model_type, &Keys::new(&config))["num_key_value_heads"].clone()
        };
        assert_eq!(of("qwen2", json!({"num_attention_heads": 64})), json!(32));
        assert_eq!(of("qwen3_vl_text", json!({"num_attention_heads": 32})), json!(32));
        assert_eq!(of("qwen3_vl_moe_text", json!({"num_attention_heads": 32})), json!(16));
        assert_eq!(of("gemma", json!({"num_attention_heads": 8})), Value::Null);
        assert_eq!(of("qwen3", json!({"num_attention_heads": 40})), Value::Null);
        assert_eq!(of("qwen3", json!({"num_attention_heads": 64, "num_key_value_heads": null})), Value::Null);
        assert_eq!(of("qwen3", json!({"num_attention_heads": 64, "num_key_value_heads": 8})), json!(8));
        assert_eq!(of("llama", json!({"num_attention_heads": 64})), Value::Null);
    }
}
