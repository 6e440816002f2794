//! The decoder of Qwen3.5 and Qwen3.6 alone (`Qwen3_5ForCausalLM`), where a token has one position.

use super::common::{NamePrefix, dense};
use super::qwen3_next::hybrid;
use super::text_family::TextFamily;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::nn::GatedDeltaLayout;

type Result<T> = std::result::Result<T, ModelConfigError>;

pub(super) const FAMILY: TextFamily = TextFamily::new("qwen3_5_text", read).with_kv_heads(4);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig> {
    let feed_forwards = vec![dense(keys)?; keys.size("num_hidden_layers")? as usize];
    hybrid(keys, place, GatedDeltaLayout::Separate, feed_forwards)
}
