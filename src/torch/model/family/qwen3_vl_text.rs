//! The decoder of Qwen3-VL (`Qwen3VLTextModel`): Qwen3 whose positions have three axes.

use super::common::{NamePrefix, dense, only_full_attention, uniform};
use super::qwen3::heads;
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::{read_mrope, read_rope};

/// The default where a config has none.
pub(super) const MROPE_SECTION: [i64; 3] = [24, 20, 20];

pub(super) const FAMILY: TextFamily = TextFamily::new("qwen3_vl_text", read).with_kv_heads(32);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    only_full_attention(keys)?;
    let attention = heads(keys, Some(128))?;
    let mut rope = read_rope(keys, attention.head_dim, 500_000.0)?;
    rope.axes = read_mrope(keys, &rope, MROPE_SECTION, true)?;
    uniform(keys, place, MixerConfig::Attention(attention), dense(keys)?, rope)
}
