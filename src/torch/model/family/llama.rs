//! LLaMA 2, 3 and 3.1 (`LlamaForCausalLM`).

use super::common::{NamePrefix, attention, uniform};
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, FeedForwardConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_rope;

pub(super) const FAMILY: TextFamily = TextFamily::new("llama", read);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let mut attention = attention(keys)?;
    let bias = keys.flag_or("attention_bias")?.unwrap_or(false);
    (attention.qkv_bias, attention.o_bias) = (bias, bias);
    let rope = read_rope(keys, attention.head_dim, 10_000.0)?;
    let bias = keys.flag_or("mlp_bias")?.unwrap_or(false);
    let feed_forward = FeedForwardConfig::Dense { intermediate_size: keys.size("intermediate_size")?, bias };
    uniform(keys, place, MixerConfig::Attention(attention), feed_forward, rope)
}
