//! The decoder of Qwen3-VL (`Qwen3VLTextModel`): Qwen3 whose positions have three axes.

use super::common::{NamePrefix, dense, only_full_attention, uniform};
use super::kv_heads::with_kv_heads;
use super::qwen3::heads;
use crate::model::decoder::{DecoderConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::{read_mrope, read_rope};

/// The default where a config has none.
pub(super) const MROPE_SECTION: [i64; 3] = [24, 20, 20];

pub(super) fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let filled = with_kv_heads("qwen3_vl_text", keys);
    let keys = &keys.instead(&filled);
    only_full_attention(keys)?;
    let attention = heads(keys, Some(128))?;
    let mut rope = read_rope(keys, attention.head_dim, 500_000.0)?;
    rope.axes = read_mrope(keys, &rope, MROPE_SECTION, true)?;
    uniform(keys, place, MixerConfig::Attention(attention), dense(keys)?, rope)
}
