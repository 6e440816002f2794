//! Qwen3.5 and Qwen3.6 with experts (`Qwen3_5MoeForConditionalGeneration`): Qwen3.5 with Qwen3-Next's experts in every
//! layer.

use super::common::Place;
use super::experts::balance;
use super::qwen3_5::{no_deepstack, with_axes};
use super::qwen3_next::{experts, hybrid};
use super::qwen3_vl::with_tower;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::registry::ModelConfig;
use crate::nn::GatedDeltaLayout;

type Result<T> = std::result::Result<T, ModelConfigError>;

pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    no_deepstack(keys)?;
    with_tower("qwen3_5_moe", keys, with_axes(&keys.section("text_config")?, read_text)?)
}

/// The decoder alone (`Qwen3_5MoeForCausalLM`), where a token has one position.
pub(in crate::model) fn read_text(keys: &Keys<'_>, place: &Place) -> Result<DecoderConfig> {
    let feed_forwards = vec![experts(keys, true)?; keys.size("num_hidden_layers")? as usize];
    let decoder = hybrid(keys, place, GatedDeltaLayout::Separate, feed_forwards)?;
    Ok(DecoderConfig { balance: balance(keys, 0.001)?, ..decoder })
}
