//! Qwen3, dense (`Qwen3ForCausalLM`): every head of queries and keys is normed.

use super::common::{MAX_WINDOW_LAYERS, NamePrefix, attention_or, dense, with_windows};
use super::text_family::TextFamily;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_rope;
use crate::nn::{AttentionConfig, QkNorm};

pub(super) const FAMILY: TextFamily = TextFamily::new("qwen3", read).with_kv_heads(32);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let attention = heads(keys, Some(128))?;
    let rope = read_rope(keys, attention.head_dim, 10_000.0)?;
    with_windows(keys, place, &attention, MAX_WINDOW_LAYERS, dense(keys)?, rope)
}

/// Returns Qwen3's attention.
pub(super) fn heads(keys: &Keys<'_>, default_head_dim: Option<i64>) -> Result<AttentionConfig, ModelConfigError> {
    let bias = keys.flag_or("attention_bias")?.unwrap_or(false);
    let attention = attention_or(keys, default_head_dim)?;
    Ok(AttentionConfig { qkv_bias: bias, o_bias: bias, qk_norm: QkNorm::Head, ..attention })
}
