//! The text model of Gemma 3 (`Gemma3ForCausalLM`): Gemma 2 with normed heads in place of soft caps, and rotary embeddings
//! of their own in the layers with a window, which are all but every sixth.

use serde_json::json;

use super::common::NamePrefix;
use super::gemma::{decoder, scaled_heads, soft_cap, windows, with_output_norms};
use super::text_family::TextFamily;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_rope_by_kind;
use crate::nn::QkNorm;

pub(super) const FAMILY: TextFamily = TextFamily::new("gemma3_text", read).with_kv_heads(4);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    // transformers has this key in the config and does not read it.
    keys.only("attn_logit_softcapping", &[json!(null)])?;
    let mut attention = scaled_heads(keys)?;
    attention.qk_norm = QkNorm::Head;
    let ropes = read_rope_by_kind(keys, attention.head_dim, [1e6, 1e4])?;
    let interval = keys.size_or("sliding_window_pattern")?.unwrap_or(6);
    let decoder = decoder(keys, place, &attention, &windows(keys, interval)?, ropes)?;
    let final_soft_cap = soft_cap(keys, "final_logit_softcapping", None)?;
    Ok(DecoderConfig { final_soft_cap, ..with_output_norms(decoder) })
}
