//! The decoder of Qwen3.5 and Qwen3.6 alone (`Qwen3_5ForCausalLM`), where a token has one position.

use super::common::{NamePrefix, dense};
use super::kv_heads::with_kv_heads;
use super::qwen3_next::hybrid;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::nn::GatedDeltaLayout;

type Result<T> = std::result::Result<T, ModelConfigError>;

pub(super) fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig> {
    let filled = with_kv_heads("qwen3_5_text", keys);
    let keys = &keys.instead(&filled);
    let feed_forwards = vec![dense(keys)?; keys.size("num_hidden_layers")? as usize];
    hybrid(keys, place, GatedDeltaLayout::Separate, feed_forwards)
}
