//! Qwen3-VL with experts (`Qwen3VLMoeForConditionalGeneration`): Qwen3-VL before the decoder of Qwen3-MoE, whose experts
//! the checkpoint stacks.

use super::common::{Place, only_full_attention};
use super::qwen3::heads;
use super::qwen3_moe::decoder;
use super::qwen3_vl::{MROPE_SECTION, with_tower};
use super::vision::unbalanced;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::registry::ModelConfig;
use crate::model::rope_config::{read_mrope, read_rope};
use crate::nn::moe::{ExpertNames, MoeNames};

pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig, ModelConfigError> {
    let decoder = read_text(&keys.section("text_config")?, &Place::new("model.language_model.", ""))?;
    with_tower("qwen3_vl_moe", keys, decoder)
}

/// The decoder (`Qwen3VLMoeTextModel`). It has a load-balancing loss only where a run asks for one: transformers reads
/// no `output_router_logits` from this config.
pub(in crate::model) fn read_text(keys: &Keys<'_>, place: &Place) -> Result<DecoderConfig, ModelConfigError> {
    only_full_attention(keys)?;
    let attention = heads(keys, None)?;
    let mut rope = read_rope(keys, attention.head_dim, 500_000.0)?;
    rope.axes = read_mrope(keys, &rope, MROPE_SECTION, true)?;
    let names = MoeNames { experts: ExpertNames::Stacked, ..MoeNames::default() };
    let decoder = decoder(keys, place, attention, rope, true, names)?;
    Ok(unbalanced(decoder))
}
