//! The decoder of Qwen2.5-Omni's thinker (`Qwen2_5OmniThinkerTextModel`): that of Qwen2.5-VL, with Qwen2's epsilon.

use super::common::{MAX_WINDOW_LAYERS, NamePrefix, attention, dense, with_windows};
use super::kv_heads::with_kv_heads;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::{read_mrope, read_rope};

pub(super) fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let filled = with_kv_heads("qwen2_5_omni_text", keys);
    let keys = &keys.instead(&filled);
    let mut attention = attention(keys)?;
    attention.qkv_bias = true;
    let mut rope = read_rope(keys, attention.head_dim, 1_000_000.0)?;
    rope.axes = read_mrope(keys, &rope, [16, 24, 24], false)?;
    with_windows(keys, place, &attention, MAX_WINDOW_LAYERS, dense(keys)?, rope)
}
