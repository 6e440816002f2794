//! MiMo-7B (`MiMoForCausalLM` of its repository): Qwen2's decoder with one prediction head.

use super::common::NamePrefix;
use super::qwen2;
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, MtpNames, MtpPlace, MtpProjection};
use crate::model::keys::{Keys, ModelConfigError};

pub(super) const FAMILY: TextFamily = TextFamily::new("mimo", read).with_kv_heads(32);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let mtp = MtpNames {
        heads: MtpPlace::Numbered(format!("{}mtp_layers", place.base), 0),
        embedding_norm: "token_layernorm",
        hidden_norm: "hidden_layernorm",
        project: MtpProjection::Joined("input_proj"),
        last_norm: "final_layernorm",
        hidden_first: true,
        repeats: None,
        layer: None,
    };
    Ok(DecoderConfig { mtp_names: Some(mtp), ..qwen2::read(keys, place)? })
}
