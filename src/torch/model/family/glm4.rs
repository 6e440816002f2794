//! GLM-4-0414 (`Glm4ForCausalLM`): the inputs and the outputs of both branches are normed, and a half of every head turns, in pairs of
//! neighbors.

use serde_json::json;

use super::common::{NamePrefix, attention_or, dense, only_full_attention, uniform};
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_partial_rope;
use crate::nn::{AttentionConfig, GateUp, RopeConfig, RopeLayout};

pub(super) const FAMILY: TextFamily = TextFamily::new("glm4", read).with_kv_heads(2);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let filled = keys.filled(&json!({"rms_norm_eps": 1.5625e-7, "pad_token_id": 151_329}));
    let keys = &keys.instead(&filled);
    only_full_attention(keys)?;
    let bias = keys.flag_or("attention_bias")?.unwrap_or(true);
    let attention = AttentionConfig { qkv_bias: bias, ..attention_or(keys, Some(128))? };
    let rope = read_partial_rope(keys, attention.head_dim, 10_000.0, 0.5)?;
    let rope = RopeConfig { layout: RopeLayout::Interleaved, ..rope };
    let mut decoder = uniform(keys, place, MixerConfig::Attention(attention), dense(keys)?, rope)?;
    decoder.names.gate_up = GateUp::Joint("gate_up_proj");
    for layer in &mut decoder.layers {
        layer.output_norms = Some(["post_self_attn_layernorm", "post_mlp_layernorm"]);
    }
    Ok(decoder)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::decoder::{DecoderConfig, MixerConfig};
    use crate::model::family::decoder_of::decoder_of;

    fn read(changes: Value) -> Result<DecoderConfig, String> {
        let config = json!({
            "model_type": "glm4", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "pad_token_id": 0,
            "num_hidden_layers": 2, "num_attention_heads": 4
        });
        decoder_of(config, &changes)
    }

    #[test]
    fn defaults_are_those_of_the_class() {
        let decoder = read(json!({})).unwrap();
        assert_eq!((decoder.norm.eps, decoder.layers[0].rope.rotary_dim), (1.5625e-7, 64));
        let MixerConfig::Attention(attention) = &decoder.layers[0].mixer else { unreachable!("it attends") };
        assert_eq!((attention.num_kv_heads, attention.head_dim), (2, 128));
        assert!(attention.qkv_bias && !attention.o_bias);
    }

    #[test]
    fn what_is_not_implemented_is_refused_by_name() {
        for (changes, expected) in [
            (json!({"layer_types": ["sliding_attention", "full_attention"]}), "layer_types is"),
            (json!({"attention_dropout": 0.1}), "attention_dropout is 0.1"),
            (json!({"pad_token_id": 320}), "pad_token_id is 320"),
        ] {
            let message = read(changes).unwrap_err();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
