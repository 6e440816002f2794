//! The definition of a family of language models: a `model_type`, a reader of its `config.json`, and the key/value heads that its config
//! class has where a config does not say how many.

use serde_json::{Value, json};

use super::common::NamePrefix;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};

/// Reads the keys of a language model, with the key/value heads filled in, into a decoder whose tensors stand under the prefix.
type ReadDecoder = fn(&Keys<'_>, &NamePrefix) -> Result<DecoderConfig, ModelConfigError>;

/// A family of language models, alone or as a part of another model. Each file of a family has one.
#[derive(Clone, Copy)]
pub(in crate::model) struct TextFamily {
    /// The `model_type` of `config.json`.
    pub model_type: &'static str,
    num_kv_heads: Option<i64>,
    read: ReadDecoder,
}

impl TextFamily {
    /// Returns a family whose config class takes as many key/value heads as query heads where a config does not say, or that has latents
    /// in place of both.
    pub(super) const fn new(model_type: &'static str, read: ReadDecoder) -> TextFamily {
        TextFamily { model_type, num_kv_heads: None, read }
    }

    /// Returns the family with another default of `num_key_value_heads`: that of its config class.
    pub(super) const fn with_kv_heads(self, num_kv_heads: i64) -> TextFamily {
        TextFamily { num_kv_heads: Some(num_kv_heads), ..self }
    }

    /// Returns the same family under another `model_type`.
    pub(super) const fn named(self, model_type: &'static str) -> TextFamily {
        TextFamily { model_type, ..self }
    }

    /// Returns the decoder that `keys` describe, whatever `model_type` they have.
    ///
    /// # Errors
    /// A key is missing, wrong or not implemented; the error names it.
    pub fn read(&self, keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
        (self.read)(&keys.instead(&self.with_defaults(keys)), place)
    }

    /// Returns the config with the class's number of key/value heads where the key is absent, if that number divides the query heads:
    /// else the reference cannot run, and there are as many as query heads. Null stays: it means as many as query heads.
    fn with_defaults(&self, keys: &Keys<'_>) -> Value {
        let divides = |number: &i64| match keys.value("num_attention_heads").and_then(Value::as_i64) {
            Some(queries) => queries % number == 0,
            None => true,
        };
        match self.num_kv_heads.filter(divides) {
            Some(number) => keys.filled(&json!({"num_key_value_heads": number})),
            None => keys.object().clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::TextFamily;
    use crate::model::family::{gemma, llama, qwen2, qwen3, qwen3_vl_moe_text, qwen3_vl_text};
    use crate::model::keys::Keys;

    #[test]
    fn an_absent_number_of_key_value_heads_is_that_of_the_class_where_it_fits() {
        let of = |family: TextFamily, config: Value| {
            family.with_defaults(&Keys::new(&config))["num_key_value_heads"].clone()
        };
        assert_eq!(of(qwen2::FAMILY, json!({"num_attention_heads": 64})), json!(32));
        assert_eq!(of(qwen3_vl_text::FAMILY, json!({"num_attention_heads": 32})), json!(32));
        assert_eq!(of(qwen3_vl_moe_text::FAMILY, json!({"num_attention_heads": 32})), json!(16));
        assert_eq!(of(gemma::FAMILY, json!({"num_attention_heads": 8})), Value::Null);
        assert_eq!(of(qwen3::FAMILY, json!({"num_attention_heads": 40})), Value::Null);
        assert_eq!(of(qwen3::FAMILY, json!({"num_attention_heads": 64, "num_key_value_heads": null})), Value::Null);
        assert_eq!(of(qwen3::FAMILY, json!({"num_attention_heads": 64, "num_key_value_heads": 8})), json!(8));
        assert_eq!(of(llama::FAMILY, json!({"num_attention_heads": 64})), Value::Null);
    }
}
