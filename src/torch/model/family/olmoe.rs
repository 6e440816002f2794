//! OLMoE (`OlmoeForCausalLM`): queries and keys are normed over all heads together, and every layer has experts.

use serde_json::json;

use super::common::{NamePrefix, attention, only_full_attention, uniform};
use super::experts::{balance, checked, num_experts};
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, FeedForwardConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_rope;
use crate::nn::moe::{MoeConfig, MoeNames, Normalize, RouterConfig};
use crate::nn::{AttentionConfig, QkNorm};

pub(super) const FAMILY: TextFamily = TextFamily::new("olmoe", read);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let filled = keys.filled(&json!({"rms_norm_eps": 1e-5, "pad_token_id": 1}));
    let keys = &keys.instead(&filled);
    if let Some(clip) = keys.number_or("clip_qkv")? {
        return Err(keys.inconsistent(
            "clip_qkv",
            clip,
            "queries, keys and values are not clipped here: it must be null",
        ));
    }
    only_full_attention(keys)?;
    // The norms of queries and keys are as wide as without the key.
    keys.only("head_dim", &[json!(keys.size("hidden_size")? / keys.size("num_attention_heads")?)])?;
    let bias = keys.flag_or("attention_bias")?.unwrap_or(false);
    let attention = AttentionConfig { qkv_bias: bias, o_bias: bias, qk_norm: QkNorm::Full, ..attention(keys)? };
    let rope = read_rope(keys, attention.head_dim, 10_000.0)?;
    let router = RouterConfig::softmax(num_experts(keys, &["num_experts"])?, keys.size("num_experts_per_tok")?);
    let normalized = keys.flag_or("norm_topk_prob")?.unwrap_or(false);
    let normalize = if normalized { router.normalize } else { Normalize::No };
    let experts = FeedForwardConfig::Moe(MoeConfig {
        router: checked(keys, RouterConfig { normalize, ..router })?,
        intermediate_size: keys.size("intermediate_size")?,
        bias: false,
        shared: None,
        names: MoeNames::default(),
        media: None,
    });
    let decoder = uniform(keys, place, MixerConfig::Attention(attention), experts, rope)?;
    Ok(DecoderConfig { balance: balance(keys, 0.01)?, ..decoder })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::decoder::{DecoderConfig, FeedForwardConfig};
    use crate::model::family::decoder_of::decoder_of;
    use crate::nn::moe::Normalize;

    fn read(changes: Value) -> Result<DecoderConfig, String> {
        let config = json!({
            "model_type": "olmoe", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 24,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_experts": 8, "num_experts_per_tok": 2
        });
        decoder_of(config, &changes)
    }

    #[test]
    fn defaults_are_those_of_the_class() {
        let decoder = read(json!({"output_router_logits": true})).unwrap();
        assert_eq!((decoder.norm.eps, decoder.pad_token_id, decoder.balance.aux_loss_coef), (1e-5, Some(1), 0.01));
        let FeedForwardConfig::Moe(experts) = &decoder.layers[0].feed_forward else { unreachable!("it has experts") };
        assert_eq!(experts.router.normalize, Normalize::No);
        assert!(read(json!({"clip_qkv": null, "head_dim": 16})).is_ok());
    }

    #[test]
    fn what_is_not_implemented_is_refused_by_name() {
        for (changes, expected) in [
            (json!({"clip_qkv": 8.0}), "clip_qkv is 8, but queries, keys and values are not clipped here"),
            (json!({"head_dim": 8}), "head_dim is 8"),
            (json!({"num_experts_per_tok": 9}), "num_experts_per_tok is 9, but there are only 8 experts"),
        ] {
            let message = read(changes).unwrap_err();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
