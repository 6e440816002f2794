//! DeepSeek-V3.2 (`DeepseekV32ForCausalLM`): DeepSeek-V3 with an indexer in every layer.

use super::common::NamePrefix;
use super::deepseek::{V3, attention, biased_router, decoder, feed_forwards, indexer, rope};
use super::text_family::TextFamily;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::nn::{KeyChoice, MlaConfig, RopeLayout};

pub(super) const FAMILY: TextFamily = TextFamily::new("deepseek_v32", read);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let rope = rope(keys, RopeLayout::Interleaved)?;
    let (attention, indexer) = (attention(keys, &rope)?, indexer(keys, RopeLayout::HalfSplit)?);
    let mixer = |layer| {
        let keys = KeyChoice::Indexed { indexer: indexer.clone(), layer };
        MlaConfig { keys, ..attention.clone() }
    };
    let mixers = (0..keys.size("num_hidden_layers")? as usize).map(mixer).collect();
    let feed_forwards = feed_forwards(keys, &V3, biased_router(keys, &V3)?, false)?;
    decoder(keys, place, &V3, mixers, feed_forwards, rope)
}
