//! OLMo 2 (`Olmo2ForCausalLM`): the outputs of both branches are normed and their inputs are not; queries and keys are normed
//! over all heads together.

use serde_json::{Value, json};

use super::common::{NamePrefix, attention, dense, only_full_attention, uniform};
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_rope;
use crate::nn::{AttentionConfig, QkNorm};

type Result<T> = std::result::Result<T, ModelConfigError>;

pub(super) const FAMILY: TextFamily = TextFamily::new("olmo2", read);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig> {
    let filled = filled(keys);
    let keys = &keys.instead(&filled);
    only_full_attention(keys)?;
    let attention = heads(keys)?;
    let rope = read_rope(keys, attention.head_dim, 10_000.0)?;
    Ok(with_output_norms(uniform(keys, place, MixerConfig::Attention(attention), dense(keys)?, rope)?))
}

/// Returns the config with the defaults of its class, which OLMo 3 has too.
pub(super) fn filled(keys: &Keys<'_>) -> Value {
    keys.filled(&json!({"rms_norm_eps": 1e-5, "pad_token_id": 1}))
}

/// Returns OLMo 2's attention.
pub(super) fn heads(keys: &Keys<'_>) -> Result<AttentionConfig> {
    // A key of the first OLMo.
    keys.only("clip_qkv", &[])?;
    let bias = keys.flag_or("attention_bias")?.unwrap_or(false);
    Ok(AttentionConfig { qkv_bias: bias, o_bias: bias, qk_norm: QkNorm::Full, ..attention(keys)? })
}

/// Puts norms after both branches, and none before.
pub(super) fn with_output_norms(mut config: DecoderConfig) -> DecoderConfig {
    for layer in &mut config.layers {
        layer.norms_inputs = false;
        layer.output_norms = Some(["post_attention_layernorm", "post_feedforward_layernorm"]);
    }
    config
}
