//! The `config.json` of what is saved: plain weights of one type, whatever they came from.

use loongforge_core::data::{Component, has_dtype};
use serde_json::{Value, json};

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
    saved
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
}
