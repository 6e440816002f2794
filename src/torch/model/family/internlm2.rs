//! InternLM2 and InternLM2.5 (`InternLM2ForCausalLM` of their repositories): LLaMA's computation with queries, keys and
//! values in one projection, and names of its own.

use super::common::{NamePrefix, attention, dense, uniform};
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, MixerConfig, Names};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_rope;
use crate::nn::{AttentionConfig, GateUp, Qkv};

pub(super) const FAMILY: TextFamily = TextFamily::new("internlm2", read);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let bias = keys.flag_or("bias")?.unwrap_or(true);
    let attention =
        AttentionConfig { qkv: Qkv::Grouped("wqkv"), qkv_bias: bias, o: "wo", o_bias: bias, ..attention(keys)? };
    let rope = read_rope(keys, attention.head_dim, 10_000.0)?;
    let mut config = uniform(keys, place, MixerConfig::Attention(attention), dense(keys)?, rope)?;
    config.names = Names {
        embed: format!("{}tok_embeddings", place.base),
        head: format!("{}output", place.head),
        input_norm: "attention_norm",
        post_norm: "ffn_norm",
        attention: "attention",
        mlp: "feed_forward",
        gate_up: GateUp::Separate(["w1", "w3"]),
        down: "w2",
        ..config.names
    };
    Ok(config)
}
