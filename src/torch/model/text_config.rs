//! The config of a Qwen3 decoder, alone or as the text part of Qwen3-VL.

use serde_json::json;

use super::keys::{Keys, ModelConfigError};
use super::rope_config::{read_mrope, read_rope};
use crate::nn::RopeConfig;

/// `Qwen3Config`, or `Qwen3VLTextConfig`. Names are Hugging Face's.
#[derive(Clone, Debug, PartialEq)]
pub struct TextConfig {
    pub vocab_size: i64,
    pub hidden_size: i64,
    pub intermediate_size: i64,
    pub num_hidden_layers: i64,
    pub num_attention_heads: i64,
    pub num_key_value_heads: i64,
    pub head_dim: i64,
    pub rms_norm_eps: f64,
    pub attention_bias: bool,
    pub tie_word_embeddings: bool,
    /// The token whose embedding gets no gradient.
    pub pad_token_id: Option<i64>,
    pub initializer_range: f64,
    pub rope: RopeConfig,
}

impl TextConfig {
    /// `multimodal`: whether positions are of three axes, as in Qwen3-VL.
    pub(super) fn read(keys: &Keys<'_>, tie: Option<bool>, multimodal: bool) -> Result<TextConfig, ModelConfigError> {
        keys.only("hidden_act", &[json!("silu")])?;
        keys.only("use_sliding_window", &[json!(false)])?;
        keys.only("attention_dropout", &[json!(0.0), json!(0)])?;
        if let Some(types) = keys.value("layer_types") {
            let full = types.as_array().is_some_and(|types| types.iter().all(|kind| kind == "full_attention"));
            if !full {
                return Err(keys.unsupported("layer_types", types, &[json!("full_attention")]));
            }
        }
        let hidden_size = keys.size("hidden_size")?;
        let num_attention_heads = keys.size("num_attention_heads")?;
        let num_key_value_heads = keys.size_or("num_key_value_heads")?.unwrap_or(num_attention_heads);
        if num_attention_heads % num_key_value_heads != 0 {
            let must = format!("must divide num_attention_heads ({num_attention_heads})");
            return Err(keys.inconsistent("num_key_value_heads", num_key_value_heads, must));
        }
        let head_dim = keys.size_or("head_dim")?.unwrap_or(hidden_size / num_attention_heads);
        if head_dim % 2 != 0 {
            return Err(keys.inconsistent("head_dim", head_dim, "rotary embeddings need an even one"));
        }
        let vocab_size = keys.size("vocab_size")?;
        let pad_token_id = keys.index_or("pad_token_id")?;
        if let Some(pad) = pad_token_id.filter(|pad| *pad >= vocab_size) {
            return Err(keys.inconsistent("pad_token_id", pad, format!("must be below vocab_size ({vocab_size})")));
        }
        let mut rope = read_rope(keys, head_dim, if multimodal { 500_000.0 } else { 10_000.0 })?;
        if multimodal {
            rope.axes = read_mrope(keys, &rope, true)?;
        }
        Ok(TextConfig {
            vocab_size,
            hidden_size,
            intermediate_size: keys.size("intermediate_size")?,
            num_hidden_layers: keys.size("num_hidden_layers")?,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            rms_norm_eps: keys.number_or("rms_norm_eps")?.unwrap_or(1e-6),
            attention_bias: keys.flag_or("attention_bias")?.unwrap_or(false),
            tie_word_embeddings: tie.or(keys.flag_or("tie_word_embeddings")?).unwrap_or(false),
            pad_token_id,
            initializer_range: keys.number_or("initializer_range")?.unwrap_or(0.02),
            rope,
        })
    }
}
