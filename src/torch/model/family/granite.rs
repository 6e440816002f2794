//! Granite 3 (`GraniteForCausalLM`): LLaMA with multipliers of embeddings, of attention's scores, of what branches add, and with
//! scores of the vocabulary that are divided.

use super::common::{NamePrefix, attention, only_full_attention, uniform};
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, FeedForwardConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_rope;
use crate::nn::AttentionConfig;

pub(super) const FAMILY: TextFamily = TextFamily::new("granite", read);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    only_full_attention(keys)?;
    let multiplier = |key: &str| keys.number_or(key).map(|value| value.unwrap_or(1.0));
    let bias = keys.flag_or("attention_bias")?.unwrap_or(false);
    let scores = multiplier("attention_multiplier")?.into();
    let attention = AttentionConfig { qkv_bias: bias, o_bias: bias, scores, ..attention(keys)? };
    let rope = read_rope(keys, attention.head_dim, 10_000.0)?;
    let feed_forward = FeedForwardConfig::Dense {
        intermediate_size: keys.size("intermediate_size")?,
        bias: keys.flag_or("mlp_bias")?.unwrap_or(false),
    };
    let other_than_one = |multiplier: f64| Some(multiplier).filter(|multiplier| *multiplier != 1.0);
    let (embedding, divisor) = (multiplier("embedding_multiplier")?, multiplier("logits_scaling")?);
    if divisor == 0.0 {
        return Err(keys.inconsistent("logits_scaling", divisor, "scores are divided by it: it must not be 0"));
    }
    let residual = other_than_one(multiplier("residual_multiplier")?);
    let mut decoder = uniform(keys, place, MixerConfig::Attention(attention), feed_forward, rope)?;
    decoder.layers.iter_mut().for_each(|layer| layer.output_scale = residual);
    decoder.embedding_scale = other_than_one(embedding);
    decoder.score_divisor = other_than_one(divisor);
    Ok(decoder)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::decoder::{DecoderConfig, MixerConfig};
    use crate::model::family::decoder_of::decoder_of;

    fn read(changes: Value) -> Result<DecoderConfig, String> {
        let config = json!({
            "model_type": "granite", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 4
        });
        decoder_of(config, &changes)
    }

    /// Returns multipliers of embeddings, scores of attention and branches, and the divisor of the vocabulary's scores.
    fn multipliers(changes: Value) -> [Option<f64>; 4] {
        let decoder = read(changes).unwrap();
        let layer = &decoder.layers[1];
        let MixerConfig::Attention(attention) = &layer.mixer else { unreachable!("it attends") };
        [decoder.embedding_scale, attention.scores.scale, layer.output_scale, decoder.score_divisor]
    }

    #[test]
    fn absent_multipliers_are_one_and_that_of_attention_too() {
        assert_eq!(multipliers(json!({})), [None, Some(1.0), None, None]);
        let published = json!({"embedding_multiplier": 12, "attention_multiplier": 0.015625, "residual_multiplier": 0.22,
            "logits_scaling": 8.0});
        assert_eq!(multipliers(published), [Some(12.0), Some(0.015625), Some(0.22), Some(8.0)]);
    }

    #[test]
    fn what_cannot_be_computed_is_refused_by_name() {
        for (changes, expected) in [
            (json!({"logits_scaling": 0}), "logits_scaling is 0, but scores are divided by it"),
            (json!({"attention_dropout": 0.1}), "attention_dropout is 0.1"),
            (json!({"layer_types": ["sliding_attention", "full_attention"]}), "layer_types is"),
        ] {
            let message = read(changes).unwrap_err();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
