//! Keys that llama.cpp has for Gemma, 1 to 3, alone, and what it fixes for them: windows in a rhythm, capped scores, two rotary bases.

use super::heads::heads;
use super::keys::Keys;
use super::names::Architecture;
use loongforge_torch::model::{DecoderConfig, FeedForwardConfig, LayerConfig};
use loongforge_torch::nn::{Activation, AttentionConfig, QkNorm, RopeScaling};

/// Puts the keys that other families do not have.
pub fn put_keys(keys: &mut Keys, decoder: &DecoderConfig, layer: &LayerConfig, attention: &AttentionConfig) {
    if let Some(cap) = attention.scores.soft_cap {
        keys.float("attn_logit_softcapping", cap);
    }
    if let Some(cap) = decoder.final_soft_cap {
        keys.float("final_logit_softcapping", cap);
    }
    if let Some(window) = attention.window {
        keys.whole("attention.sliding_window", window);
        if decoder.layers.iter().any(|other| other.rope.theta != layer.rope.theta) {
            keys.float("rope.freq_base_swa", layer.rope.theta);
        }
    }
}

/// # Errors
/// The key of `config.json` and the part of its meaning that llama.cpp's architecture lacks.
pub fn expect_known(architecture: Architecture, decoder: &DecoderConfig) -> Result<(), (&'static str, &'static str)> {
    let layers = &decoder.layers;
    let first = heads(&layers[0]).map_err(|_| ("config.json", "layers like these"))?;
    // The last layer of so many has no window.
    let rhythm = match architecture {
        Architecture::Gemma2 => Some(2),
        Architecture::Gemma3 => Some(6),
        _ => None,
    };
    for (at, layer) in layers.iter().enumerate() {
        let attention = heads(layer).map_err(|_| ("config.json", "layers like these"))?;
        let window = if rhythm.is_none_or(|rhythm| (at + 1) % rhythm == 0) { None } else { first.window };
        if attention.window != window || rhythm.is_some() && first.window.is_none() {
            return Err(("layer_types", "this order of layers with and without a sliding window (some need one)"));
        }
        let alike = AttentionConfig { window: first.window, ..attention.clone() };
        if alike != *first || layer.feed_forward != layers[0].feed_forward {
            return Err(("config.json", "layers that differ from each other"));
        }
        if attention.window.is_some() && layer.rope.scaling != RopeScaling::Default {
            return Err(("rope_parameters", "scaling in layers with a sliding window"));
        }
        if layer.rope.rotary_dim != attention.head_dim {
            return Err(("partial_rotary_factor", "rotary embeddings on only a part of each head"));
        }
    }
    let layer = &layers[0];
    let scale = first.scores.scale_of(first.head_dim);
    // llama.cpp knows the large models of the second and third by the number of their layers.
    let is_large = matches!((architecture, layers.len()), (Architecture::Gemma2, 46) | (Architecture::Gemma3, 62));
    let width = if is_large { decoder.hidden_size / first.num_heads } else { first.head_dim };
    let capped = architecture == Architecture::Gemma2;
    let is_gated = matches!(layer.feed_forward, FeedForwardConfig::Dense { bias: false, .. });
    match () {
        () if layer.act != Activation::GeluTanh => {
            Err(("hidden_activation", "an activation other than gelu_pytorch_tanh"))
        }
        () if first.qkv_bias || first.o_bias => Err(("attention_bias", "these biases")),
        () if (scale - (width as f64).powf(-0.5)).abs() > 1e-6 => {
            Err(("query_pre_attn_scalar", "this scale of scores"))
        }
        () if first.scores.soft_cap.is_some() != capped => Err(("attn_logit_softcapping", "this value")),
        () if capped && decoder.final_soft_cap.is_none()
            || architecture == Architecture::Gemma && decoder.final_soft_cap.is_some() =>
        {
            Err(("final_logit_softcapping", "this value"))
        }
        () if (first.qk_norm == QkNorm::Head) != (architecture == Architecture::Gemma3) => {
            Err(("qk_norm", "norms of queries and keys like these"))
        }
        () if layer.output_norms.is_some() != architecture.norms_outputs() || !decoder.tie_word_embeddings => {
            Err(("tie_word_embeddings", "a separate output head"))
        }
        () if !is_gated || !layer.norm.zero_centered || decoder.head_bias => Err(("config.json", "layers like these")),
        () => Ok(()),
    }
}
