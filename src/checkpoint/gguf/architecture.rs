//! A decoder's numbers as the metadata of llama.cpp's architectures, and what they have no place for.

use super::container::Metadata;
use super::gemma;
use super::heads::heads;
use super::keys::Keys;
use super::names::Architecture;
use loongforge_torch::model::{DecoderConfig, FeedForwardConfig, LayerConfig};
use loongforge_torch::native::bytes;
use loongforge_torch::nn::moe::{MoeConfig, Normalize, RouterScores};
use loongforge_torch::nn::{Activation, AttentionConfig, QkNorm, RopeScaling};
use serde_json::Value as Json;
use tch::{Device, Kind, Tensor};

/// The description of a model by the keys of a GGUF file.
pub struct Described {
    pub metadata: Metadata,
    /// Heads of queries, and of keys.
    pub num_heads: [i64; 2],
    /// Divisors of the rotary frequencies, one a frequency (`rope_freqs.weight`).
    pub frequency_factors: Option<Vec<f32>>,
    /// Facts that the user should know, a sentence each.
    pub said: Vec<String>,
}

/// Describes `decoder`, of which `config` is the `config.json`.
///
/// # Errors
/// Names the key of `config.json` that llama.cpp's architecture has no place for.
pub fn describe(architecture: Architecture, config: &Json, decoder: &DecoderConfig) -> Result<Described, String> {
    let layer = decoder.layers.first().ok_or("num_hidden_layers is 0")?;
    let attention = heads(layer)?;
    expect_known(architecture, decoder, layer, attention)?;
    let mut keys = Keys { begin: architecture.name(), metadata: Vec::new() };
    keys.whole("block_count", decoder.layers.len() as i64);
    if let Some(length) = config["max_position_embeddings"].as_i64() {
        keys.whole("context_length", length);
    }
    keys.whole("embedding_length", decoder.hidden_size);
    let mut experts = None;
    match &layer.feed_forward {
        FeedForwardConfig::Dense { intermediate_size, .. } => keys.whole("feed_forward_length", *intermediate_size),
        FeedForwardConfig::Moe(moe) => {
            let dense = config["intermediate_size"].as_i64().unwrap_or(moe.intermediate_size);
            keys.whole("feed_forward_length", dense);
            experts = Some(moe);
        }
    }
    keys.whole("attention.head_count", attention.num_heads);
    keys.whole("attention.head_count_kv", attention.num_kv_heads);
    // Of layers of two kinds those without a window have the scaling.
    let full = decoder.layers.iter().find(|layer| heads(layer).is_ok_and(|it| it.window.is_none())).unwrap_or(layer);
    let frequency_factors = rope(&mut keys, full, attention.head_dim)?;
    keys.float("rope.freq_base", full.rope.theta);
    if architecture.is_gemma() {
        gemma::put_keys(&mut keys, decoder, layer, attention);
    }
    keys.float("attention.layer_norm_rms_epsilon", layer.norm.eps);
    if let Some(moe) = experts {
        keys.whole("expert_count", moe.router.num_experts);
        keys.whole("expert_used_count", moe.router.top_k);
        if architecture == Architecture::Qwen3Moe {
            keys.whole("expert_feed_forward_length", moe.intermediate_size);
        }
    }
    if config["head_dim"].is_i64()
        || architecture.is_gemma()
        || attention.head_dim * attention.num_heads != decoder.hidden_size
    {
        keys.whole("attention.key_length", attention.head_dim);
        keys.whole("attention.value_length", attention.head_dim);
    }
    if architecture == Architecture::Llama {
        keys.whole("vocab_size", decoder.vocab_size);
        keys.whole("rope.dimension_count", attention.head_dim);
    }
    let windows = decoder.layers.iter().filter_map(|layer| heads(layer).ok()?.window).min();
    let windows = windows.filter(|_| !architecture.norms_outputs());
    let said = windows.map(|window| {
        format!(
            "llama.cpp's architecture {} has no sliding window: a token attends to all before it there, here to {window}; up to \
             {window} tokens both compute the same",
            architecture.name()
        )
    });
    let num_heads = [attention.num_heads, attention.num_kv_heads];
    Ok(Described { metadata: keys.metadata, num_heads, frequency_factors, said: said.into_iter().collect() })
}

/// # Errors
/// Names what the architecture has no place for.
fn expect_known(
    architecture: Architecture,
    decoder: &DecoderConfig,
    layer: &LayerConfig,
    attention: &AttentionConfig,
) -> Result<(), String> {
    let name = architecture.name();
    let no_place =
        |key: &str, what: &str| Err(format!("{key}: llama.cpp's architecture {name} does not support {what}"));
    if architecture.is_gemma() {
        return gemma::expect_known(architecture, decoder).or_else(|(key, what)| no_place(key, what));
    }
    let alike = |other: &LayerConfig| {
        let windowed = heads(other).map(|other| AttentionConfig { window: attention.window, ..other.clone() });
        windowed.as_ref() == Ok(attention) && other.feed_forward == layer.feed_forward && other.rope == layer.rope
    };
    if !decoder.layers.iter().all(alike) {
        return no_place("mlp_only_layers, decoder_sparse_step or layer_types", "layers that differ from each other");
    }
    let is_llama = architecture == Architecture::Llama;
    let is_qwen3 = matches!(architecture, Architecture::Qwen3 | Architecture::Qwen3Moe);
    if layer.act != Activation::Silu {
        return no_place("hidden_act", "an activation other than silu");
    }
    if attention.o_bias && !is_llama || attention.qkv_bias && is_qwen3 {
        return no_place("attention_bias", "these biases");
    }
    if attention.qk_norm != if is_qwen3 { QkNorm::Head } else { QkNorm::None } {
        return no_place("qk_norm", "norms of queries and keys like these");
    }
    let is_plain = attention.scores.scale.is_none() && attention.scores.soft_cap.is_none() && attention.turns;
    if !is_plain || attention.sinks || attention.output_gate || decoder.final_soft_cap.is_some() {
        return no_place("config.json", "attention like this one");
    }
    if layer.norm.zero_centered
        || decoder.embedding_scale.is_some()
        || decoder.head_bias
        || !layer.norms_inputs
        || layer.output_norms.is_some()
        || layer.output_scale.is_some()
        || decoder.score_divisor.is_some()
        || layer.rope.query_scale.is_some()
    {
        return no_place("config.json", "layers like these");
    }
    if layer.rope.rotary_dim != attention.head_dim {
        return no_place("partial_rotary_factor", "rotary embeddings on only a part of each head");
    }
    if architecture == Architecture::Qwen2 && attention.num_heads * attention.head_dim != decoder.hidden_size {
        return no_place("head_dim", "a head width other than hidden_size / num_attention_heads");
    }
    match &layer.feed_forward {
        FeedForwardConfig::Dense { bias: true, .. } if !is_llama => no_place("mlp_bias", "these biases"),
        FeedForwardConfig::Dense { .. } if architecture == Architecture::Qwen3Moe => {
            no_place("num_experts", "layers without experts")
        }
        FeedForwardConfig::Moe(moe) => match unknown_experts(moe) {
            Some(key) => no_place(key, "experts like these"),
            None => Ok(()),
        },
        FeedForwardConfig::Dense { .. } => Ok(()),
    }
}

/// Returns the key of `config.json` by which these experts are not those that llama.cpp computes: a softmax over all, the weights of the
/// chosen ones divided by their sum.
fn unknown_experts(moe: &MoeConfig) -> Option<&'static str> {
    let router = &moe.router;
    match () {
        () if router.normalize == Normalize::No => Some("norm_topk_prob"),
        () if router.scores == RouterScores::Sigmoid => Some("scoring_func"),
        () if router.bias || router.logit_bias || router.groups.is_some() => Some("n_group"),
        () if router.scaling_factor != 1.0 => Some("routed_scaling_factor"),
        () if moe.bias || moe.shared.is_some() || moe.media.is_some() => Some("n_shared_experts"),
        () => None,
    }
}

/// Puts the scaling of rotary embeddings; of LLaMA 3.1 returns what divides each frequency.
fn rope(keys: &mut Keys, layer: &LayerConfig, head_dim: i64) -> Result<Option<Vec<f32>>, String> {
    let refused = |what: &str| Err(format!("rope_scaling: llama.cpp does not support {what}"));
    match &layer.rope.scaling {
        RopeScaling::Default => {}
        RopeScaling::Linear { factor } => {
            keys.put("rope.scaling.type", "linear".into());
            keys.float("rope.scaling.factor", *factor);
        }
        RopeScaling::Yarn(yarn) => {
            let own =
                yarn.attention_factor.is_some_and(|factor| (factor - (0.1 * yarn.factor.ln() + 1.0)).abs() > 1e-6);
            if own || yarn.mscale != 0.0 || yarn.mscale_all_dim != 0.0 || !yarn.truncate {
                return refused("yarn with attention_factor, mscale, mscale_all_dim or truncate: false");
            }
            keys.put("rope.scaling.type", "yarn".into());
            keys.float("rope.scaling.factor", yarn.factor);
            keys.whole("rope.scaling.original_context_length", yarn.original_max_position_embeddings);
            if yarn.beta_fast != 32.0 {
                keys.float("rope.scaling.yarn_beta_fast", yarn.beta_fast);
            }
            if yarn.beta_slow != 1.0 {
                keys.float("rope.scaling.yarn_beta_slow", yarn.beta_slow);
            }
        }
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
            let original = *original_max_position_embeddings as f32;
            let [factor, low, high] = [*factor, *low_freq_factor, *high_freq_factor].map(|value| value as f32);
            let (longest, shortest) = (original / low, original / high);
            // All in float32, as llama.cpp's converter computes it.
            let divisor = |frequency: &f32| {
                let length = 2.0 * std::f32::consts::PI / frequency;
                let smooth = (original / length - low) / (high - low);
                match () {
                    () if length < shortest => 1.0,
                    () if length > longest => factor,
                    () => 1.0 / ((1.0 - smooth) / factor + smooth),
                }
            };
            return Ok(Some(frequencies(layer.rope.theta, head_dim).iter().map(divisor).collect()));
        }
        RopeScaling::Dynamic { .. } => return refused("rope_type: dynamic"),
        RopeScaling::LongRope { .. } => return refused("rope_type: longrope in this architecture"),
    }
    Ok(None)
}

/// Returns the frequencies of rotary embeddings before they are scaled.
fn frequencies(theta: f64, head_dim: i64) -> Vec<f32> {
    let exponents = Tensor::arange_start_step(0, head_dim, 2, (Kind::Float, Device::Cpu)) / head_dim;
    let frequencies = Tensor::pow_scalar(theta, &exponents).reciprocal();
    bytes(&frequencies.contiguous()).as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}
