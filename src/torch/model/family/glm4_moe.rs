//! GLM-4.5, GLM-4.5-Air and GLM-4.6 (`Glm4MoeForCausalLM`): DeepSeek-V3's experts behind grouped-query attention, of whose heads a
//! half turns.

use serde_json::json;

use super::common::{NamePrefix, attention, only_full_attention};
use super::deepseek::{Defaults, biased_router, decoder, feed_forwards};
use super::text_family::TextFamily;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_partial_rope;
use crate::nn::{AttentionConfig, QkNorm};

const DEFAULTS: Defaults = Defaults { groups: [1, 1], n_shared_experts: 1, first_k_dense_replace: 1 };

pub(super) const FAMILY: TextFamily = TextFamily::new("glm4_moe", read).with_kv_heads(8);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let filled = keys.filled(&json!({"rms_norm_eps": 1e-5, "routed_scaling_factor": 1.0}));
    let keys = &keys.instead(&filled);
    only_full_attention(keys)?;
    let normed = keys.flag_or("use_qk_norm")?.unwrap_or(false);
    let attention = AttentionConfig {
        qkv_bias: keys.flag_or("attention_bias")?.unwrap_or(false),
        qk_norm: if normed { QkNorm::Head } else { QkNorm::None },
        ..attention(keys)?
    };
    let rope = read_partial_rope(keys, attention.head_dim, 10_000.0, 0.5)?;
    let mixers = vec![attention; keys.size("num_hidden_layers")? as usize];
    let feed_forwards = feed_forwards(keys, &DEFAULTS, biased_router(keys, &DEFAULTS)?, false)?;
    decoder(keys, place, &DEFAULTS, mixers, feed_forwards, rope)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::decoder::{DecoderConfig, FeedForwardConfig, MixerConfig};
    use crate::model::family::decoder_of::decoder_of;

    fn read(changes: Value) -> Result<DecoderConfig, String> {
        let config = json!({
            "model_type": "glm4_moe", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96,
            "moe_intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 24, "n_routed_experts": 8, "num_experts_per_tok": 2
        });
        decoder_of(config, &changes)
    }

    #[test]
    fn defaults_are_those_of_the_class() {
        let decoder = read(json!({})).unwrap();
        assert_eq!((decoder.norm.eps, decoder.layers[0].rope.rotary_dim), (1e-5, 12));
        let is_dense = |layer: usize| matches!(decoder.layers[layer].feed_forward, FeedForwardConfig::Dense { .. });
        assert!(is_dense(0) && !is_dense(1) && !is_dense(2));
        let FeedForwardConfig::Moe(experts) = &decoder.layers[1].feed_forward else { unreachable!("it has experts") };
        assert_eq!((experts.router.scaling_factor, experts.router.groups), (1.0, None));
        let biased = read(json!({"attention_bias": true, "use_qk_norm": true})).unwrap();
        let MixerConfig::Attention(attention) = &biased.layers[0].mixer else { unreachable!("it attends") };
        assert!(attention.qkv_bias && !attention.o_bias);
    }

    #[test]
    fn what_is_not_implemented_is_refused_by_name() {
        for (changes, expected) in [
            (json!({"scoring_func": "softmax"}), "scoring_func is \"softmax\""),
            (json!({"layer_types": ["sliding_attention"]}), "layer_types is"),
            (json!({"n_group": 3}), "n_group is 3, but must divide the number of experts (8)"),
        ] {
            let message = read(changes).unwrap_err();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
