//! Qwen, the first generation (`QWenLMHeadModel` of its repository): Qwen2's computation under names of its own.
//!
//! Beyond `seq_length` the published code stretches frequencies and scales queries (`use_dynamic_ntk`,
//! `use_logn_attn`), in inference only; training does neither.

use serde_json::json;

use super::common::{NamePrefix, uniform};
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, FeedForwardConfig, MixerConfig, Names};
use crate::model::keys::{Keys, ModelConfigError};
use crate::nn::{AttentionConfig, GateUp, NormConfig, Qkv, RopeConfig};

pub(super) const FAMILY: TextFamily = TextFamily::new("qwen", read);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    keys.only("rotary_pct", &[json!(1.0), json!(1)])?;
    ["attn_dropout_prob", "emb_dropout_prob"].iter().try_for_each(|key| keys.no_dropout(key))?;
    let (num_heads, head_dim) = (keys.size("num_attention_heads")?, keys.size("kv_channels")?);
    let bias = !keys.flag_or("no_bias")?.unwrap_or(true);
    let attention = AttentionConfig {
        qkv: Qkv::Joint("c_attn"),
        qkv_bias: true,
        o: "c_proj",
        o_bias: bias,
        ..AttentionConfig::new(num_heads, num_heads, head_dim)
    };
    // The published number counts both halves of the gated product.
    let both = keys.size("intermediate_size")?;
    if both % 2 != 0 {
        return Err(keys.inconsistent("intermediate_size", both, "it counts gate and up together and must be even"));
    }
    let feed_forward = FeedForwardConfig::Dense { intermediate_size: both / 2, bias };
    let rope = RopeConfig::plain(head_dim, keys.number_or("rotary_emb_base")?.unwrap_or(10_000.0));
    let config = uniform(keys, place, MixerConfig::Attention(attention), feed_forward, rope)?;
    let eps = keys.number_or("layer_norm_epsilon")?.unwrap_or(1e-6);
    let norm = NormConfig { eps, ..config.norm };
    let mut config = config.with_norm(norm);
    config.names = Names {
        embed: format!("{}transformer.wte", place.head),
        layers: format!("{}transformer.h", place.head),
        norm: format!("{}transformer.ln_f", place.head),
        head: format!("{}lm_head", place.head),
        input_norm: "ln_1",
        post_norm: "ln_2",
        attention: "attn",
        mlp: "mlp",
        gate_up: GateUp::Separate(["w2", "w1"]),
        down: "c_proj",
        renames: &[],
    };
    Ok(config)
}
