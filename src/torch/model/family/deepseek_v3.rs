//! DeepSeek-V3 and Kimi-K2 (`DeepseekV3ForCausalLM`).

use super::common::NamePrefix;
use super::deepseek::{V3, attention, biased_router, decoder, feed_forwards, rope};
use super::text_family::TextFamily;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::nn::RopeLayout;

pub(super) const FAMILY: TextFamily = TextFamily::new("deepseek_v3", read);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let interleaved = keys.flag_or("rope_interleave")?.unwrap_or(true);
    let rope = rope(keys, if interleaved { RopeLayout::Interleaved } else { RopeLayout::HalfSplit })?;
    let mixers = vec![attention(keys, &rope)?; keys.size("num_hidden_layers")? as usize];
    let feed_forwards = feed_forwards(keys, &V3, biased_router(keys, &V3)?, false)?;
    decoder(keys, place, &V3, mixers, feed_forwards, rope)
}
