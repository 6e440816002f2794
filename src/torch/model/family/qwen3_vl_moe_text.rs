//! The decoder of Qwen3-VL with experts (`Qwen3VLMoeTextModel`): Qwen3-MoE, whose experts the checkpoint stacks, with three
//! axes of positions.

use super::common::{NamePrefix, only_full_attention};
use super::experts::unbalanced;
use super::kv_heads::with_kv_heads;
use super::qwen3::heads;
use super::qwen3_moe::decoder;
use super::qwen3_vl_text::MROPE_SECTION;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::{read_mrope, read_rope};
use crate::nn::moe::{ExpertNames, MoeNames};

/// It has a load-balancing loss only where a run asks for one: transformers reads
/// no `output_router_logits` from this config.
pub(super) fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let filled = with_kv_heads("qwen3_vl_moe_text", keys);
    let keys = &keys.instead(&filled);
    only_full_attention(keys)?;
    let attention = heads(keys, None)?;
    let mut rope = read_rope(keys, attention.head_dim, 500_000.0)?;
    rope.axes = read_mrope(keys, &rope, MROPE_SECTION, true)?;
    let names = MoeNames { experts: ExpertNames::Stacked, ..MoeNames::default() };
    let decoder = decoder(keys, place, attention, rope, true, names)?;
    Ok(unbalanced(decoder))
}
