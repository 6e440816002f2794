//! The decoder of Qwen3-Omni's thinker (`Qwen3OmniMoeThinkerTextModel`): that of Qwen3-MoE, whose positions have three axes.

use super::common::{NamePrefix, only_full_attention};
use super::qwen3::heads;
use super::qwen3_moe::decoder;
use super::qwen3_vl_text::MROPE_SECTION;
use super::text_family::TextFamily;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::{read_mrope, read_rope};
use crate::nn::moe::MoeNames;

pub(super) const FAMILY: TextFamily = TextFamily::new("qwen3_omni_moe_text", read).with_kv_heads(4);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    only_full_attention(keys)?;
    // The reference cuts its cache by this key, and nothing else.
    keys.only("sliding_window", &[])?;
    let attention = heads(keys, None)?;
    let mut rope = read_rope(keys, attention.head_dim, 1_000_000.0)?;
    rope.axes = read_mrope(keys, &rope, MROPE_SECTION, true)?;
    let normalized = keys.flag_or("norm_topk_prob")?.unwrap_or(true);
    decoder(keys, place, attention, rope, normalized, MoeNames::default())
}
