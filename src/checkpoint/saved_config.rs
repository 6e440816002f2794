//! The `config.json` of what is saved: plain weights of one type, whatever they came from. Also which of them transformers keeps in
//! float32 in a model of a narrower type.

use loongforge_core::data::{Component, has_dtype, is_policy};
use loongforge_torch::train::hf::Dtype;
use serde_json::{Value, json};

/// Parts of the names of tensors that stay in float32 in any model: the bias that balances experts moves by steps that are smaller than
/// the distance of its values in bf16.
const OF_ANY: [&str; 2] = ["e_score_correction_bias", "moe_statics"];

/// Those of some models, by their `model_type` (`_keep_in_fp32_modules_strict` of their classes), as modules and published files call
/// them.
const OF_MODELS: [(&[&str], &[&str]); 3] = [
    (&["ernie4_5_moe", "ernie4_5_vl_moe", "ernie4_5_moe_vl"], &["gate.weight"]),
    (&["voxtral"], &["embed_positions"]),
    (&["deepseek_v4"], &["norm.", "_hc.", "hc_", "sink", "position_bias", ".ape", ".gate.bias"]),
];

/// Those that do in float16 alone (`_keep_in_fp32_modules`).
const IN_FLOAT16: [(&[&str], &[&str]); 3] = [
    (&["gpt_oss"], &["norm."]),
    (&["deepseek_v32", "glm_moe_dsa"], &["indexer.weights_proj"]),
    (&["t5", "umt5"], &[".wo."]),
];

/// Returns parts of the names of tensors that stay in float32 in files of `dtype`.
pub fn kept_in_float32(config: &Value, dtype: Option<Dtype>) -> Vec<&'static str> {
    let tables = match dtype {
        Some(Dtype::BF16) => OF_MODELS.to_vec(),
        Some(Dtype::F16) => [&OF_MODELS[..], &IN_FLOAT16[..]].concat(),
        _ => return Vec::new(),
    };
    let theirs = tables.into_iter().filter(|(types, _)| has_part_of(config, types)).flat_map(|(_, parts)| parts);
    OF_ANY.into_iter().chain(theirs.copied()).collect()
}

/// Returns whether a model or a part of it has one of these types.
fn has_part_of(config: &Value, types: &[&str]) -> bool {
    let Some(map) = config.as_object() else { return false };
    let is_one = map.get("model_type").and_then(Value::as_str).is_some_and(|own| types.contains(&own));
    is_one || map.values().any(|part| has_part_of(part, types))
}

/// Returns the config without packing, and with `dtype` (`"bfloat16"`, `"float32"`) wherever the original names a type; transformers 4
/// calls it `torch_dtype`. `None` leaves types as they are. The sections of parts whose tensors are carried unchanged keep their types:
/// `carried` has the beginnings of their tensors' names.
pub fn saved_config(config: &Value, dtype: Option<&str>, carried: &[&str]) -> Value {
    let mut saved = config.clone();
    let Some(map) = saved.as_object_mut() else { return saved };
    let left: Vec<String> = carried.iter().map(|prefix| format!("{}_config", prefix.trim_end_matches('.'))).collect();
    let named = plain(map, dtype, &left);
    if let (false, Some(dtype), true) = (named, dtype, has_dtype(config)) {
        map.insert("dtype".to_owned(), json!(dtype));
    }
    put_use_peft(&mut saved, false);
    saved
}

/// The key by which lerobot tells a folder of adapters, which it adds to the base that they name, from one of weights.
const USE_PEFT: &str = "use_peft";

/// Says in the config of a policy in lerobot's layout whether the weights in its folder are adapters alone. A config without the key
/// that needs none is left as it is: older versions of lerobot refuse it.
pub fn put_use_peft(config: &mut Value, has_adapters: bool) {
    let is_of_lerobot = config["type"].is_string() && is_policy(config);
    if is_of_lerobot && (has_adapters || !config[USE_PEFT].is_null()) {
        config[USE_PEFT] = has_adapters.into();
    }
}

/// Returns whether this level named a type.
fn plain(map: &mut serde_json::Map<String, Value>, dtype: Option<&str>, left: &[String]) -> bool {
    map.shift_remove("quantization_config");
    let mut named = false;
    for (key, value) in map.iter_mut() {
        if key == "dtype" || key == "torch_dtype" {
            named = true;
            if let Some(dtype) = dtype {
                *value = json!(dtype);
            }
        } else if let Some(inner) = value.as_object_mut().filter(|_| is_part(key) && !left.contains(key)) {
            plain(inner, dtype, left);
        }
    }
    named
}

/// Returns whether this is the key of a part's own config.
fn is_part(key: &str) -> bool {
    key.ends_with("_config") || Component::named(key).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_that_transformers_keeps_in_float32_are_known_by_the_types_of_the_parts() {
        let kept = |model_type: &str, dtype| {
            let config = json!({"model_type": "a", "text_config": {"model_type": model_type}});
            kept_in_float32(&config, dtype)
        };
        assert_eq!(kept("glm4_moe", Some(Dtype::BF16)), OF_ANY);
        assert!(kept("glm4_moe", Some(Dtype::F32)).is_empty() && kept("ernie4_5_moe", None).is_empty());
        assert_eq!(kept("ernie4_5_moe", Some(Dtype::BF16)).last(), Some(&"gate.weight"));
        assert_eq!(kept("gpt_oss", Some(Dtype::BF16)), OF_ANY);
        assert_eq!(kept("gpt_oss", Some(Dtype::F16)).last(), Some(&"norm."));
        assert_eq!(kept("umt5", Some(Dtype::F16)).last(), Some(&".wo."));
    }

    #[test]
    fn packing_goes_and_the_type_is_ours() {
        let config = json!({"a": 1, "quantization_config": {"x": 1}, "torch_dtype": "float16",
            "text_config": {"dtype": "float8", "quantization_config": {}, "rope": {"dtype": "kept"}}});
        let want =
            json!({"a": 1, "torch_dtype": "bfloat16", "text_config": {"dtype": "bfloat16", "rope": {"dtype": "kept"}}});
        assert_eq!(saved_config(&config, Some("bfloat16"), &[]), want);
        assert_eq!(saved_config(&config, Some("bfloat16"), &["text."])["text_config"], config["text_config"]);
        assert_eq!(saved_config(&json!({"a": 1}), Some("float32"), &[]), json!({"a": 1, "dtype": "float32"}));
        assert_eq!(saved_config(&json!({"a": 1}), None, &[]), json!({"a": 1}));
        assert_eq!(saved_config(&json!({"type": "smolvla"}), Some("float32"), &[]), json!({"type": "smolvla"}));
    }

    #[test]
    fn folders_of_adapters_are_told_to_lerobot() {
        let put = |config: Value, has_adapters: bool| {
            let mut config = config;
            put_use_peft(&mut config, has_adapters);
            config
        };
        let [bare, plain, adapted] = [
            json!({"type": "pi05"}),
            json!({"type": "pi05", "use_peft": false}),
            json!({"type": "pi05", "use_peft": true}),
        ];
        for config in [&bare, &plain, &adapted] {
            assert_eq!(put(config.clone(), true), adapted);
        }
        assert_eq!(put(bare.clone(), false), bare);
        assert_eq!((put(plain.clone(), false), put(adapted.clone(), false)), (plain.clone(), plain.clone()));
        assert_eq!(saved_config(&adapted, None, &[]), plain, "weights to which adapters were added");
        // NVIDIA's own layout and models of transformers have no such key.
        for config in [json!({"model_type": "Gr00tN1d7"}), json!({"model_type": "qwen3"})] {
            assert_eq!(put(config.clone(), true), config);
        }
    }
}
