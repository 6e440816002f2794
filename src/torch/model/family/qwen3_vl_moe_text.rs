//! The decoder of Qwen3-VL with experts (`Qwen3VLMoeTextModel`): Qwen3-MoE, whose experts the checkpoint stacks, with three
//! axes of positions.

use super::common::{NamePrefix, only_full_attention};
use super::experts::unbalanced;
use super::qwen3::heads;
use super::qwen3_moe::decoder;
use super::qwen3_vl_text::MROPE_SECTION;
use super::text_family::TextFamily;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::{read_mrope, read_rope};
use crate::nn::moe::{ExpertNames, MoeNames};

pub(super) const FAMILY: TextFamily = TextFamily::new("qwen3_vl_moe_text", read).with_kv_heads(16);

/// It has a load-balancing loss only where a run asks for one: transformers reads
/// no `output_router_logits` from this config.
fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    only_full_attention(keys)?;
    let attention = heads(keys, None)?;
    let mut rope = read_rope(keys, attention.head_dim, 500_000.0)?;
    rope.axes = read_mrope(keys, &rope, MROPE_SECTION, true)?;
    let names = MoeNames { experts: ExpertNames::Stacked, ..MoeNames::default() };
    let decoder = decoder(keys, place, attention, rope, true, names)?;
    Ok(unbalanced(decoder))
}
