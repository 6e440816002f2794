//! Seed-OSS (`SeedOssForCausalLM`): LLaMA with biases of its own for queries, keys and values, for outputs and for feed-forwards.

use serde_json::json;

use super::common::{NamePrefix, attention_or, only_full_attention, uniform};
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, FeedForwardConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_rope;
use crate::nn::AttentionConfig;

pub(super) const FAMILY: TextFamily = TextFamily::new("seed_oss", read).with_kv_heads(8);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let filled = keys.filled(&json!({"attention_dropout": 0.1, "residual_dropout": 0.1, "pad_token_id": 1}));
    let keys = &keys.instead(&filled);
    ["attention_dropout", "residual_dropout"].iter().try_for_each(|key| keys.no_dropout(key))?;
    only_full_attention(keys)?;
    let flag = |key: &str, default: bool| keys.flag_or(key).map(|value| value.unwrap_or(default));
    // A null is the hidden size over the heads.
    let head_dim = if keys.has("head_dim") { None } else { Some(128) };
    let attention = AttentionConfig {
        qkv_bias: flag("attention_bias", true)?,
        o_bias: flag("attention_out_bias", false)?,
        ..attention_or(keys, head_dim)?
    };
    let rope = read_rope(keys, attention.head_dim, 10_000.0)?;
    let feed_forward =
        FeedForwardConfig::Dense { intermediate_size: keys.size("intermediate_size")?, bias: flag("mlp_bias", false)? };
    uniform(keys, place, MixerConfig::Attention(attention), feed_forward, rope)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::ModelConfig;
    use crate::model::decoder::MixerConfig;
    use crate::model::family::decoder_of::decoder_of;
    use crate::nn::AttentionConfig;

    fn read(changes: Value) -> Result<AttentionConfig, String> {
        let config = json!({
            "model_type": "seed_oss", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 8, "attention_dropout": 0.0, "residual_dropout": 0
        });
        let decoder = decoder_of(config, &changes)?;
        match &decoder.layers[0].mixer {
            MixerConfig::Attention(attention) => Ok(attention.clone()),
            _ => unreachable!("it attends"),
        }
    }

    #[test]
    fn defaults_are_those_of_the_class() {
        let attention = read(json!({})).unwrap();
        assert_eq!((attention.num_kv_heads, attention.head_dim), (8, 128));
        assert!(attention.qkv_bias && !attention.o_bias);
        assert_eq!(read(json!({"head_dim": null})).unwrap().head_dim, 8);
        assert!(read(json!({"attention_out_bias": true})).unwrap().o_bias);
    }

    #[test]
    fn dropout_is_refused_with_what_to_set() {
        for (key, value) in [("attention_dropout", json!(0.1)), ("residual_dropout", json!(0.2))] {
            let message = read(json!({key: value})).unwrap_err();
            let expected = format!("{key} is {value}, but dropout is not computed here: set it to 0");
            assert!(message.contains(&expected), "{message:?} lacks {expected:?}");
        }
        let published = json!({"model_type": "seed_oss", "vocab_size": 320});
        let message = ModelConfig::from_hf(&published).unwrap_err().to_string();
        assert!(message.contains("attention_dropout is 0.1"), "{message}");
    }
}
