//! ERNIE-4.5, dense (`Ernie4_5ForCausalLM`): LLaMA whose rotary embeddings turn neighboring channels, with biases in
//! all projections or in none.

use serde_json::json;

use super::common::{NamePrefix, attention_or, layered, only_full_attention};
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, FeedForwardConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_rope;
use crate::nn::{AttentionConfig, NormConfig, RopeLayout};

pub(super) const FAMILY: TextFamily = TextFamily::new("ernie4_5", read).with_kv_heads(2);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let num_layers = keys.size("num_hidden_layers")? as usize;
    // Where it is null, the hidden size over the heads.
    let default_head_dim = (!keys.has("head_dim")).then_some(128);
    decoder(keys, place, default_head_dim, vec![dense(keys)?; num_layers])
}

/// Returns ERNIE with these feed-forwards; `default_head_dim` as in [`attention_or`].
pub(super) fn decoder(
    keys: &Keys<'_>,
    place: &NamePrefix,
    default_head_dim: Option<i64>,
    feed_forwards: Vec<FeedForwardConfig>,
) -> Result<DecoderConfig, ModelConfigError> {
    only_full_attention(keys)?;
    keys.only("compression_ratio", &[json!(1.0), json!(1)])?;
    let bias = keys.flag_or("use_bias")?.unwrap_or(false);
    let heads = AttentionConfig { qkv_bias: bias, o_bias: bias, ..attention_or(keys, default_head_dim)? };
    let mut rope = read_rope(keys, heads.head_dim, 500_000.0)?;
    rope.layout = RopeLayout::Interleaved;
    let mixer = MixerConfig::Attention(heads);
    let layer = |feed_forward| (mixer.clone(), feed_forward);
    let decoder = layered(keys, place, feed_forwards.into_iter().map(layer).collect(), rope)?;
    let norm = NormConfig { eps: keys.number_or("rms_norm_eps")?.unwrap_or(1e-5), ..decoder.norm };
    Ok(DecoderConfig {
        tie_word_embeddings: keys.flag_or("tie_word_embeddings")?.unwrap_or(true),
        pad_token_id: if keys.has("pad_token_id") { decoder.pad_token_id } else { Some(0) },
        ..decoder.with_norm(norm)
    })
}

/// Reads the dense feed-forward of ERNIE-4.5, with biases where `use_bias` says so.
///
/// # Errors
/// A key is missing or of another type.
pub(super) fn dense(keys: &Keys<'_>) -> Result<FeedForwardConfig, ModelConfigError> {
    let bias = keys.flag_or("use_bias")?.unwrap_or(false);
    Ok(FeedForwardConfig::Dense { intermediate_size: keys.size("intermediate_size")?, bias })
}
