//! The decoder of Qwen2.5-Omni's thinker (`Qwen2_5OmniThinkerTextModel`): that of Qwen2.5-VL, with Qwen2's epsilon.

use super::common::{MAX_WINDOW_LAYERS, NamePrefix, attention, dense, with_windows};
use super::text_family::TextFamily;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::{read_mrope, read_rope};

pub(super) const FAMILY: TextFamily = TextFamily::new("qwen2_5_omni_text", read).with_kv_heads(4);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let mut attention = attention(keys)?;
    attention.qkv_bias = true;
    let mut rope = read_rope(keys, attention.head_dim, 1_000_000.0)?;
    rope.axes = read_mrope(keys, &rope, [16, 24, 24], false)?;
    with_windows(keys, place, &attention, MAX_WINDOW_LAYERS, dense(keys)?, rope)
}
