//! Gemma (`GemmaForCausalLM`), and what Gemma 2 and 3 share with it: norms whose factor is one plus the weight, embeddings
//! times the root of the width, and a feed-forward gated by a GELU.

use serde_json::json;

use super::common::{NamePrefix, attention_or, dense, layered, sliding_layers};
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_rope;
use crate::nn::{Activation, AttentionConfig, NormConfig, RopeConfig};

type Result<T> = std::result::Result<T, ModelConfigError>;

pub(super) const FAMILY: TextFamily = TextFamily::new("gemma", read).with_kv_heads(16);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig> {
    let attention = heads(keys)?;
    let ropes = [read_rope(keys, attention.head_dim, 10_000.0)?, RopeConfig::plain(attention.head_dim, 10_000.0)];
    let num_layers = keys.size("num_hidden_layers")? as usize;
    decoder(keys, place, &attention, &vec![None; num_layers], ropes)
}

/// Returns Gemma's attention.
pub(super) fn heads(keys: &Keys<'_>) -> Result<AttentionConfig> {
    keys.only("use_bidirectional_attention", &[json!(false)])?;
    let bias = keys.flag_or("attention_bias")?.unwrap_or(false);
    Ok(AttentionConfig { qkv_bias: bias, o_bias: bias, ..attention_or(keys, Some(256))? })
}

/// Returns the attention of Gemma 2 and later, whose scores have a scale of their own.
pub(super) fn scaled_heads(keys: &Keys<'_>) -> Result<AttentionConfig> {
    let scale = keys.number_or("query_pre_attn_scalar")?.unwrap_or(256.0);
    if scale <= 0.0 {
        return Err(keys.inconsistent("query_pre_attn_scalar", scale, "must be above 0"));
    }
    Ok(AttentionConfig { scores: scale.powf(-0.5).into(), ..heads(keys)? })
}

/// Returns a soft cap, which a null turns off.
pub(super) fn soft_cap(keys: &Keys<'_>, key: &str, default: Option<f64>) -> Result<Option<f64>> {
    let cap = if keys.has(key) { keys.number_or(key)? } else { default };
    match cap {
        Some(cap) if cap <= 0.0 => Err(keys.inconsistent(key, cap, "must be above 0")),
        cap => Ok(cap),
    }
}

/// Returns the window of each layer's attention: `sliding_window` in all layers but every `interval`th, if `layer_types` does not say
/// otherwise.
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

/// Returns a decoder of layers with these windows; `ropes` of layers without and with one.
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

/// Puts norms before and after both branches.
pub(super) fn with_output_norms(mut config: DecoderConfig) -> DecoderConfig {
    config.names.post_norm = "pre_feedforward_layernorm";
    for layer in &mut config.layers {
        layer.output_norms = Some(["post_attention_layernorm", "post_feedforward_layernorm"]);
    }
    config
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::decoder::{DecoderConfig, LayerConfig, MixerConfig};
    use crate::model::family::decoder_of::decoder_of;
    use crate::nn::{Activation, RopeScaling};

    fn read(model_type: &str, changes: Value) -> Result<DecoderConfig, String> {
        let config = json!({
            "model_type": model_type, "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 7, "num_attention_heads": 4, "num_key_value_heads": 2
        });
        decoder_of(config, &changes)
    }

    fn windows(config: &DecoderConfig) -> Vec<Option<i64>> {
        let window = |layer: &LayerConfig| match &layer.mixer {
            MixerConfig::Attention(attention) => attention.window,
            _ => unreachable!("Gemma attends"),
        };
        config.layers.iter().map(window).collect()
    }

    #[test]
    fn defaults_are_those_of_the_classes() {
        let gemma = read("gemma", json!({"hidden_act": "gelu"})).unwrap();
        assert!(gemma.tie_word_embeddings && gemma.norm.zero_centered && gemma.layers[0].norm.zero_centered);
        assert_eq!(
            (gemma.embedding_scale, gemma.pad_token_id, gemma.layers[0].act),
            (Some(8.0), Some(0), Activation::Gelu)
        );
        assert_eq!(gemma.layers[0].output_norms, None);
        let both = json!({"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"});
        assert_eq!(read("gemma", both).unwrap().layers[0].act, Activation::GeluTanh);
        let gemma2 = read("gemma2", json!({})).unwrap();
        assert_eq!(windows(&gemma2)[..3], [Some(4096), None, Some(4096)]);
        let MixerConfig::Attention(attention) = &gemma2.layers[0].mixer else { unreachable!("Gemma attends") };
        assert_eq!((attention.scores.scale, attention.scores.soft_cap), (Some(1.0 / 16.0), Some(50.0)));
        assert_eq!(gemma2.final_soft_cap, Some(30.0));
        assert_eq!(read("gemma2", json!({"final_logit_softcapping": null})).unwrap().final_soft_cap, None);
        let gemma3 = read("gemma3_text", json!({"sliding_window": 8})).unwrap();
        assert_eq!(windows(&gemma3), [Some(8), Some(8), Some(8), Some(8), Some(8), None, Some(8)]);
    }

    #[test]
    fn configs_of_transformers_4_and_5_have_the_same_two_kinds_of_rotary_embeddings() {
        let old = json!({"rope_theta": 2e6, "rope_local_base_freq": 500.0, "sliding_window_pattern": 2,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0}});
        let new = json!({"sliding_window_pattern": 2, "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}});
        let config = read("gemma3_text", old).unwrap();
        let kind = |layer: usize| (config.layers[layer].rope.theta, config.layers[layer].rope.scaling.clone());
        assert_eq!([kind(0), kind(1)], [(500.0, RopeScaling::Default), (2e6, RopeScaling::Linear { factor: 8.0 })]);
        assert_eq!(read("gemma3_text", new).unwrap(), config);
        let plain = read("gemma3_text", json!({})).unwrap();
        assert_eq!((plain.layers[0].rope.theta, plain.layers[5].rope.theta), (1e4, 1e6));
    }

    #[test]
    fn what_is_not_implemented_is_refused_by_name() {
        for (model_type, changes, expected) in [
            ("gemma", json!({"use_bidirectional_attention": true}), "use_bidirectional_attention is true"),
            ("gemma2", json!({"sliding_window": null}), "sliding_window is null"),
            ("gemma2", json!({"attn_logit_softcapping": 0}), "attn_logit_softcapping is 0, but must be above 0"),
            ("gemma3_text", json!({"attn_logit_softcapping": 50.0}), "attn_logit_softcapping is 50.0"),
            ("gemma3_text", json!({"rope_parameters": {"rope_theta": 1e6}}), "rope_parameters.rope_theta"),
        ] {
            let message = read(model_type, changes).unwrap_err();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
