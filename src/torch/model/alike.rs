//! Describes which known language models a `config.json` of an unknown `model_type` may be one of.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::config::ModelConfig;
use super::family::decoders::DECODERS;
use super::family::{NamePrefix, TextFamily};
use super::keys::Keys;
use super::registry::MAX_EXPERTS;

/// Keys that say nothing of what a model computes.
const ASIDE: [&str; 20] = [
    "_attn_implementation",
    "_name_or_path",
    "architectures",
    "auto_map",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "id2label",
    "initializer_range",
    "is_decoder",
    "label2id",
    "max_position_embeddings",
    "model_type",
    "pad_token_id",
    "pretraining_tp",
    "quantization_config",
    "tokenizer_class",
    "torch_dtype",
    "transformers_version",
    "use_cache",
];

/// A language model as which a config can be read.
pub struct Alike {
    pub model_type: &'static str,
    pub config: ModelConfig,
    /// The config's keys that this model does not read, but for those that are off: null, false or 0.
    pub unread: Vec<String>,
}

impl ModelConfig {
    /// Returns the language models whose families read this `config.json`: first those that leave the fewest keys unread, and among these
    /// LLaMA. Their tensors are not compared with anything.
    pub fn alike(config: &Value) -> Vec<Alike> {
        let is_on = |value: &Value| !(value.is_null() || *value == json!(false) || value.as_f64() == Some(0.0));
        let own = config.as_object().into_iter().flatten().filter(|(_, value)| is_on(value)).map(|(key, _)| key);
        let own: BTreeSet<&String> = own.filter(|key| !ASIDE.contains(&key.as_str())).collect();
        let read = |family: &TextFamily| {
            let mut config = config.clone();
            config["model_type"] = json!(family.model_type);
            let (keys, seen) = Keys::watched(&config);
            let decoder = family.read(&keys, &NamePrefix::alone()).ok()?;
            if decoder.num_all_experts() > MAX_EXPERTS {
                return None;
            }
            let seen = seen.borrow();
            let unread = own.iter().filter(|key| !seen.contains(key.as_str())).map(|key| key.to_string()).collect();
            let config = ModelConfig::new(family.model_type, decoder, Vec::new());
            Some(Alike { model_type: family.model_type, config, unread })
        };
        let mut found: Vec<Alike> = DECODERS.iter().filter_map(read).collect();
        found.sort_by_key(|alike| (alike.unread.len(), alike.model_type != "llama"));
        found
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::ModelConfig;
    use crate::model::decoder::MixerConfig;

    /// The expected number is the one that a run of a config with that `model_type` takes.
    #[test]
    fn an_absent_number_of_key_value_heads_is_the_familys() {
        let config = json!({
            "model_type": "newcomer", "vocab_size": 320, "hidden_size": 1024, "intermediate_size": 96,
            "num_hidden_layers": 1, "num_attention_heads": 64
        });
        let found = ModelConfig::alike(&config);
        let num_kv_heads = |family: &str| {
            let alike = found.iter().find(|alike| alike.model_type == family).expect("it reads these keys");
            match &alike.config.decoder().unwrap().layers[0].mixer {
                MixerConfig::Attention(attention) => attention.num_kv_heads,
                _ => unreachable!("it attends"),
            }
        };
        assert_eq!(["llama", "qwen2", "gemma2"].map(num_kv_heads), [64, 32, 4]);
    }

    fn alike(changes: Value) -> Vec<(&'static str, Vec<String>)> {
        let mut config = json!({
            "model_type": "newcomer", "architectures": ["NewcomerForCausalLM"], "vocab_size": 320, "hidden_size": 64,
            "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-5, "attention_bias": false, "mlp_bias": false, "sliding_window": null
        });
        config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        ModelConfig::alike(&config).into_iter().map(|alike| (alike.model_type, alike.unread)).collect()
    }

    #[test]
    fn families_that_read_all_keys_come_first() {
        assert_eq!(alike(json!({}))[0], ("llama", vec![]));
        assert_eq!(alike(json!({"embedding_multiplier": 12.0, "logits_scaling": 8.0}))[0], ("granite", vec![]));
        let other = alike(json!({"embedding_factor": 12.0, "logits_factor": 8.0}));
        assert_eq!(other[0], ("llama", vec!["embedding_factor".to_owned(), "logits_factor".to_owned()]));
        assert_eq!(alike(json!({"mlp_bias": true}))[0], ("llama", vec![]));
        let windowed = alike(json!({"sliding_window": 128}));
        assert_eq!(windowed[0].1, Vec::<String>::new());
        assert!(windowed[0].0 != "llama", "{windowed:?}");
        assert!(alike(json!({"hidden_act": "none"})).iter().all(|(name, _)| *name != "llama"));
    }
}
