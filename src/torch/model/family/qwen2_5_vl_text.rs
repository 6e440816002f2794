//! The decoder of Qwen2.5-VL (`Qwen2_5_VLTextModel`): Qwen2.5 whose positions have three axes, one section of frequencies
//! after the other.

use super::common::{NamePrefix, attention, dense, with_windows};
use super::text_family::TextFamily;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::{read_mrope, read_rope};
use crate::nn::NormConfig;

/// The default where a config does not say; that of Qwen2 is another number.
const MAX_WINDOW_LAYERS: i64 = 80;

pub(super) const FAMILY: TextFamily = TextFamily::new("qwen2_5_vl_text", read).with_kv_heads(8);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let mut attention = attention(keys)?;
    attention.qkv_bias = true;
    let mut rope = read_rope(keys, attention.head_dim, 1_000_000.0)?;
    rope.axes = read_mrope(keys, &rope, [16, 24, 24], false)?;
    let decoder = with_windows(keys, place, &attention, MAX_WINDOW_LAYERS, dense(keys)?, rope)?;
    let eps = keys.number_or("rms_norm_eps")?.unwrap_or(1e-5);
    let norm = NormConfig { eps, ..decoder.norm };
    Ok(decoder.with_norm(norm))
}
