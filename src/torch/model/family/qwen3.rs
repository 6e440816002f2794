//! Qwen3, dense (`Qwen3ForCausalLM`): every head of queries and keys is normed.

use super::common::{Place, attention, dense, only_full_attention, uniform};
use crate::model::decoder::{DecoderConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_rope;
use crate::nn::{AttentionConfig, QkNorm};

pub(in crate::model) fn read(keys: &Keys<'_>, place: &Place) -> Result<DecoderConfig, ModelConfigError> {
    let attention = heads(keys)?;
    let rope = read_rope(keys, attention.head_dim, 10_000.0)?;
    uniform(keys, place, MixerConfig::Attention(attention), dense(keys)?, rope)
}

/// Qwen3's attention.
pub(super) fn heads(keys: &Keys<'_>) -> Result<AttentionConfig, ModelConfigError> {
    only_full_attention(keys)?;
    let bias = keys.flag_or("attention_bias")?.unwrap_or(false);
    Ok(AttentionConfig { qkv_bias: bias, o_bias: bias, qk_norm: QkNorm::Head, ..attention(keys)? })
}
