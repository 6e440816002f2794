//! Qwen1.5, Qwen2 and Qwen2.5 (`Qwen2ForCausalLM`).

use super::common::{MAX_WINDOW_LAYERS, NamePrefix, attention, dense, with_windows};
use super::text_family::TextFamily;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_rope;

pub(super) const FAMILY: TextFamily = TextFamily::new("qwen2", read).with_kv_heads(32);

/// Reads the decoder of a `Qwen2ForCausalLM`, of which the upper layers may attend within windows.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(super) fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let mut attention = attention(keys)?;
    attention.qkv_bias = true;
    let rope = read_rope(keys, attention.head_dim, 10_000.0)?;
    with_windows(keys, place, &attention, MAX_WINDOW_LAYERS, dense(keys)?, rope)
}
