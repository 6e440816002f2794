//! The decoder of Qwen3.5 and Qwen3.6 with experts alone (`Qwen3_5MoeForCausalLM`), where a token has one position.

use super::common::NamePrefix;
use super::experts::balance;
use super::qwen3_next::{experts, hybrid};
use super::text_family::TextFamily;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::nn::GatedDeltaLayout;

type Result<T> = std::result::Result<T, ModelConfigError>;

pub(super) const FAMILY: TextFamily = TextFamily::new("qwen3_5_moe_text", read).with_kv_heads(2);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig> {
    let feed_forwards = vec![experts(keys, true)?; keys.size("num_hidden_layers")? as usize];
    let decoder = hybrid(keys, place, GatedDeltaLayout::Separate, feed_forwards)?;
    Ok(DecoderConfig { balance: balance(keys, 0.001)?, ..decoder })
}
