//! GLM-4.7-Flash (`Glm4MoeLiteForCausalLM`): DeepSeek-V3's latent attention and experts, in one group.

use serde_json::json;

use super::common::NamePrefix;
use super::deepseek::{Defaults, attention, biased_router, decoder, feed_forwards, rope};
use super::text_family::TextFamily;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::section;
use crate::nn::RopeLayout;

const DEFAULTS: Defaults = Defaults { groups: [1, 1], n_shared_experts: 1, first_k_dense_replace: 1 };

pub(super) const FAMILY: TextFamily = TextFamily::new("glm4_moe_lite", read);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let filled = keys.filled(&json!({"rms_norm_eps": 1e-5, "routed_scaling_factor": 1.8, "q_lora_rank": 768}));
    let keys = &keys.instead(&filled);
    // The reference makes fewer angles than qk_rope_head_dim has pairs then, and cannot run.
    for place in std::iter::once(keys.clone()).chain(section(keys)?) {
        place.only("partial_rotary_factor", &[json!(1.0), json!(1)])?;
    }
    // transformers' class knows `mlp_layer_types` alone, by default one layer without experts.
    if keys.value("mlp_layer_types").is_none() {
        keys.only("first_k_dense_replace", &[json!(1)])?;
    }
    let interleaved = keys.flag_or("rope_interleave")?.unwrap_or(true);
    let rope = rope(keys, if interleaved { RopeLayout::Interleaved } else { RopeLayout::HalfSplit })?;
    let mixers = vec![attention(keys, &rope)?; keys.size("num_hidden_layers")? as usize];
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
            "model_type": "glm4_moe_lite", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96,
            "moe_intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "n_routed_experts": 8,
            "num_experts_per_tok": 2, "kv_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8
        });
        decoder_of(config, &changes)
    }

    #[test]
    fn defaults_are_those_of_the_class() {
        let decoder = read(json!({})).unwrap();
        assert_eq!(decoder.norm.eps, 1e-5);
        let MixerConfig::Mla(mla) = &decoder.layers[0].mixer else { unreachable!("latent attention") };
        assert_eq!(mla.q_lora_rank, Some(768));
        let experts: Vec<f64> = (decoder.layers.iter())
            .filter_map(|layer| match &layer.feed_forward {
                FeedForwardConfig::Moe(experts) => Some(experts.router.scaling_factor),
                FeedForwardConfig::Dense { .. } => None,
            })
            .collect();
        assert_eq!(experts, [1.8, 1.8]);
    }

    #[test]
    fn what_is_not_implemented_is_refused_by_name() {
        for (changes, expected) in [
            (json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor is 0.5"),
            (
                json!({"rope_parameters": {"partial_rotary_factor": 0.5}}),
                "rope_parameters.partial_rotary_factor is 0.5",
            ),
            (json!({"scoring_func": "softmax"}), "scoring_func is \"softmax\""),
            (json!({"first_k_dense_replace": 2}), "first_k_dense_replace is 2"),
        ] {
            let message = read(changes).unwrap_err();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
