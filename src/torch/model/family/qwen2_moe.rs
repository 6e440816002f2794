//! Qwen1.5-MoE and Qwen2-MoE (`Qwen2MoeForCausalLM`): Qwen2 with experts and a shared one behind a gate in place of feed-forwards.

use super::common::{MAX_WINDOW_LAYERS, NamePrefix, attention, dense, layered, window, windows_of};
use super::experts::{balance, qwen_layers};
use super::qwen3_next::experts;
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_rope;
use crate::nn::AttentionConfig;

pub(super) const FAMILY: TextFamily = TextFamily::new("qwen2_moe", read).with_kv_heads(16);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let bias = keys.flag_or("qkv_bias")?.unwrap_or(true);
    let attention = AttentionConfig { qkv_bias: bias, ..attention(keys)? };
    let rope = read_rope(keys, attention.head_dim, 10_000.0)?;
    let experts = experts(keys, keys.flag_or("norm_topk_prob")?.unwrap_or(false))?;
    let feed_forwards = qwen_layers(keys, &dense(keys)?, &experts)?;
    let num_windows = keys.index_or("max_window_layers")?.unwrap_or(MAX_WINDOW_LAYERS);
    let windows = windows_of(keys, window(keys)?, |layer| layer % 2 == 0 && layer < num_windows)?;
    let mixer = |window| MixerConfig::Attention(AttentionConfig { window, ..attention.clone() });
    let layers = windows.into_iter().map(mixer).zip(feed_forwards).collect();
    Ok(DecoderConfig { balance: balance(keys, 0.001)?, ..layered(keys, place, layers, rope)? })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::decoder::{DecoderConfig, FeedForwardConfig, MixerConfig};
    use crate::model::family::decoder_of::decoder_of;
    use crate::nn::moe::Normalize;

    fn read(changes: Value) -> Result<DecoderConfig, String> {
        let config = json!({
            "model_type": "qwen2_moe", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96,
            "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_experts": 8, "num_experts_per_tok": 2
        });
        decoder_of(config, &changes)
    }

    /// Returns for each layer the window, and whether queries have biases.
    fn attention(changes: Value) -> Vec<(Option<i64>, bool)> {
        let of_layer = |mixer: &MixerConfig| match mixer {
            MixerConfig::Attention(attention) => (attention.window, attention.qkv_bias),
            _ => unreachable!("it attends"),
        };
        read(changes).unwrap().layers.iter().map(|layer| of_layer(&layer.mixer)).collect()
    }

    #[test]
    fn every_other_of_the_first_layers_slides_where_windows_are_used() {
        assert_eq!(attention(json!({"sliding_window": 8})), [(None, true); 4]);
        let used = json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2, "qkv_bias": false});
        assert_eq!(attention(used), [(Some(8), false), (None, false), (None, false), (None, false)]);
        let all = json!({"use_sliding_window": true});
        assert_eq!(attention(all), [(Some(4096), true), (None, true), (Some(4096), true), (None, true)]);
    }

    #[test]
    fn weights_of_experts_are_not_normalized_and_the_shared_one_is_gated() {
        let decoder = read(json!({})).unwrap();
        let FeedForwardConfig::Moe(experts) = &decoder.layers[0].feed_forward else { unreachable!("it has experts") };
        let shared = experts.shared.as_ref().unwrap();
        assert_eq!((experts.router.normalize, shared.intermediate_size, shared.gated), (Normalize::No, 40, true));
        let message = read(json!({"num_experts_per_tok": 9})).unwrap_err();
        assert!(message.contains("num_experts_per_tok is 9, but there are only 8 experts"), "{message}");
    }
}
