//! Gemma 2 (`Gemma2ForCausalLM`): Gemma with norms after its branches as well, soft caps of scores, and a window in every
//! other layer.

use super::common::NamePrefix;
use super::gemma::{decoder, scaled_heads, soft_cap, windows, with_output_norms};
use super::text_family::TextFamily;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_rope;

pub(super) const FAMILY: TextFamily = TextFamily::new("gemma2", read).with_kv_heads(4);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let mut attention = scaled_heads(keys)?;
    attention.scores.soft_cap = soft_cap(keys, "attn_logit_softcapping", Some(50.0))?;
    let rope = read_rope(keys, attention.head_dim, 10_000.0)?;
    let decoder = decoder(keys, place, &attention, &windows(keys, 2)?, [rope.clone(), rope])?;
    let final_soft_cap = soft_cap(keys, "final_logit_softcapping", Some(30.0))?;
    Ok(DecoderConfig { final_soft_cap, ..with_output_norms(decoder) })
}
