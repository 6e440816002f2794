//! The decoder of Qwen3.5 and Qwen3.6 with experts alone (`Qwen3_5MoeForCausalLM`), where a token has one position.

use super::common::NamePrefix;
use super::experts::balance;
use super::kv_heads::with_kv_heads;
use super::qwen3_next::{experts, hybrid};
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::nn::GatedDeltaLayout;

type Result<T> = std::result::Result<T, ModelConfigError>;

pub(super) fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig> {
    let filled = with_kv_heads("qwen3_5_moe_text", keys);
    let keys = &keys.instead(&filled);
    let feed_forwards = vec![experts(keys, true)?; keys.size("num_hidden_layers")? as usize];
    let decoder = hybrid(keys, place, GatedDeltaLayout::Separate, feed_forwards)?;
    Ok(DecoderConfig { balance: balance(keys, 0.001)?, ..decoder })
}
