//! The decoder of Qwen3-Omni's thinker (`Qwen3OmniMoeThinkerTextModel`): that of Qwen3-MoE, whose positions have three axes.

use super::common::{NamePrefix, only_full_attention};
use super::kv_heads::with_kv_heads;
use super::qwen3::heads;
use super::qwen3_moe::decoder;
use super::qwen3_vl_text::MROPE_SECTION;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::{read_mrope, read_rope};
use crate::nn::moe::MoeNames;

pub(super) fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let filled = with_kv_heads("qwen3_omni_moe_text", keys);
    let keys = &keys.instead(&filled);
    only_full_attention(keys)?;
    // The reference cuts its cache by this key, and nothing else.
    keys.only("sliding_window", &[])?;
    let attention = heads(keys, None)?;
    let mut rope = read_rope(keys, attention.head_dim, 1_000_000.0)?;
    rope.axes = read_mrope(keys, &rope, MROPE_SECTION, true)?;
    let normalized = keys.flag_or("norm_topk_prob")?.unwrap_or(true);
    decoder(keys, place, attention, rope, normalized, MoeNames::default())
}
