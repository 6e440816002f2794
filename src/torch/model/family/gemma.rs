//! Gemma (`GemmaForCausalLM`), and what Gemma 2 and 3 share with it: norms whose factor is one plus the weight, embeddings
//! times the root of the width, and a feed-forward gated by a GELU.

use serde_json::json;

use super::common::{NamePrefix, attention_or, dense, layered, sliding_layers};
use crate::model::decoder::{DecoderConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_rope;
use crate::nn::{Activation, AttentionConfig, NormConfig, RopeConfig};

type Result<T> = std::result::Result<T, ModelConfigError>;

pub(in crate::model) fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig> {
    let attention = heads(keys)?;
    let ropes = [read_rope(keys, attention.head_dim, 10_000.0)?, RopeConfig::plain(attention.head_dim, 10_000.0)];
    let num_layers = keys.size("num_hidden_layers")? as usize;
    decoder(keys, place, &attention, &vec![None; num_layers], ropes)
}

/// Gemma's attention.
pub(super) fn heads(keys: &Keys<'_>) -> Result<AttentionConfig> {
    keys.only("use_bidirectional_attention", &[json!(false)])?;
    let bias = keys.flag_or("attention_bias")?.unwrap_or(false);
    Ok(AttentionConfig { qkv_bias: bias, o_bias: bias, ..attention_or(keys, Some(256))? })
}

/// The attention of Gemma 2 and later, whose scores have a scale of their own.
pub(super) fn scaled_heads(keys: &Keys<'_>) -> Result<AttentionConfig> {
    let scale = keys.number_or("query_pre_attn_scalar")?.unwrap_or(256.0);
    if scale <= 0.0 {
        return Err(keys.inconsistent("query_pre_attn_scalar", scale, "must be above 0"));
    }
    Ok(AttentionConfig { scores: scale.powf(-0.5).into(), ..heads(keys)? })
}

/// A soft cap, which a null turns off.
pub(super) fn soft_cap(keys: &Keys<'_>, key: &str, default: Option<f64>) -> Result<Option<f64>> {
    let cap = if keys.has(key) { keys.number_or(key)? } else { default };
    match cap {
        Some(cap) if cap <= 0.0 => Err(keys.inconsistent(key, cap, "must be above 0")),
        cap => Ok(cap),
    }
}

/// For each layer the window of its attention: `sliding_window` in all layers but every `interval`th, if `layer_types`
/// does not say otherwise.
pub(super) fn windows(keys: &Keys<'_>, interval: i64) -> Result<Vec<Option<i64>>> {
    let num_layers = keys.size("num_hidden_layers")?;
    let slides = match sliding_layers(keys)? {
        Some(slides) => slides,
        None => (1..=num_layers).map(|number| number % interval != 0).collect(),
    };
    let window = keys.size_or_null("sliding_window", 4096)?;
    if window.is_none() && slides.contains(&true) {
        return Err(keys.inconsistent("sliding_window", "null", "layers with sliding attention need one"));
    }
    Ok(slides.into_iter().map(|slides| window.filter(|_| slides)).collect())
}

/// A decoder of layers with these windows; `ropes` of layers without and with one.
pub(super) fn decoder(
    keys: &Keys<'_>,
    place: &NamePrefix,
    attention: &AttentionConfig,
    windows: &[Option<i64>],
    [full, local]: [RopeConfig; 2],
) -> Result<DecoderConfig> {
    let feed_forward = dense(keys)?;
    let layer = |window: &Option<i64>| {
        (MixerConfig::Attention(AttentionConfig { window: *window, ..attention.clone() }), feed_forward.clone())
    };
    let mut config = layered(keys, place, windows.iter().map(layer).collect(), full)?;
    // Published weights were trained with the tanh, which `hidden_activation` says; `hidden_act` is an older key.
    let act = match keys.activation_or("hidden_activation")? {
        Some(act) => act,
        None => keys.activation_or("hidden_act")?.unwrap_or(Activation::GeluTanh),
    };
    for (layer, window) in config.layers.iter_mut().zip(windows) {
        layer.act = act;
        if window.is_some() {
            layer.rope = local.clone();
        }
    }
    let norm = NormConfig { zero_centered: true, ..config.norm };
    Ok(DecoderConfig {
        embedding_scale: Some((config.hidden_size as f64).sqrt()),
        tie_word_embeddings: keys.flag_or("tie_word_embeddings")?.unwrap_or(true),
        pad_token_id: if keys.has("pad_token_id") { config.pad_token_id } else { Some(0) },
        ..config.with_norm(norm)
    })
}

/// Norms before and after both branches.
pub(super) fn with_output_norms(mut config: DecoderConfig) -> DecoderConfig {
    config.names.post_norm = "pre_feedforward_layernorm";
    for layer in &mut config.layers {
        layer.output_norms = Some(["post_attention_layernorm", "post_feedforward_layernorm"]);
    }
    config
}
