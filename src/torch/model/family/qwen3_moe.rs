//! Qwen3-MoE and Qwen3-Coder (`Qwen3MoeForCausalLM`): Qwen3 with experts in place of most feed-forwards.

use super::common::{NamePrefix, dense, layered, window};
use super::experts::{balance, checked, num_experts, qwen_layers};
use super::qwen3::heads;
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, FeedForwardConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_rope;
use crate::nn::moe::{MoeConfig, MoeNames, Normalize, RouterConfig};
use crate::nn::{AttentionConfig, RopeConfig};

pub(super) const FAMILY: TextFamily = TextFamily::new("qwen3_moe", read).with_kv_heads(4);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let normalized = keys.flag_or("norm_topk_prob")?.unwrap_or(false);
    let attention = AttentionConfig { window: window(keys)?, ..heads(keys, None)? };
    let rope = read_rope(keys, attention.head_dim, 10_000.0)?;
    decoder(keys, place, attention, rope, normalized, MoeNames::default())
}

/// Returns Qwen3-MoE with this attention and these rotary embeddings; `normalized`: whether the chosen experts' weights are divided by
/// their sum.
pub(super) fn decoder(
    keys: &Keys<'_>,
    place: &NamePrefix,
    attention: AttentionConfig,
    rope: RopeConfig,
    normalized: bool,
    names: MoeNames,
) -> Result<DecoderConfig, ModelConfigError> {
    let mixer = MixerConfig::Attention(attention);
    let router = RouterConfig::softmax(num_experts(keys, &["num_experts"])?, keys.size("num_experts_per_tok")?);
    let experts = FeedForwardConfig::Moe(MoeConfig {
        router: checked(keys, if normalized { router } else { RouterConfig { normalize: Normalize::No, ..router } })?,
        intermediate_size: keys.size("moe_intermediate_size")?,
        bias: false,
        shared: None,
        names,
        media: None,
    });
    let feed_forwards = qwen_layers(keys, &dense(keys)?, &experts)?;
    let layer = |feed_forward| (mixer.clone(), feed_forward);
    let layers = feed_forwards.into_iter().map(layer).collect();
    Ok(DecoderConfig { balance: balance(keys, 0.001)?, ..layered(keys, place, layers, rope)? })
}
