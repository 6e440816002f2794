//! Language models, alone or as a part of another model, by `model_type`.

use serde_json::{Value, json};

use super::kv_heads::with_kv_heads;
use super::{
    NamePrefix, deepseek_v2, deepseek_v3, deepseek_v4, deepseek_v32, ernie4_5, ernie4_5_moe, ernie4_5_vl_text, gemma,
    gemma2, gemma3_text, glm_moe_dsa, glm4_moe, gpt_oss, internlm2, llama, mimo, minimax_m2, mistral, mixtral, olmo2,
    olmo3, phi3, qwen, qwen2, qwen2_5_vl_text, qwen3, qwen3_5_moe_text, qwen3_5_text, qwen3_moe, qwen3_next,
    qwen3_vl_moe_text, qwen3_vl_text, smollm3,
};
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};

pub(in crate::model) type ReadDecoder = fn(&Keys<'_>, &NamePrefix) -> Result<DecoderConfig, ModelConfigError>;

/// Language models, alone or as a part of another model, by `model_type`.
pub(in crate::model) const DECODERS: &[(&str, ReadDecoder)] = &[
    ("deepseek_v2", deepseek_v2::read),
    ("deepseek_v3", deepseek_v3::read),
    ("deepseek_v32", deepseek_v32::read),
    ("deepseek_v4", deepseek_v4::read),
    ("ernie4_5", ernie4_5::read),
    ("ernie4_5_moe", ernie4_5_moe::read),
    ("ernie4_5_vl_moe_text", ernie4_5_vl_text::read),
    ("gemma", gemma::read),
    ("gemma2", gemma2::read),
    ("gemma3_text", gemma3_text::read),
    ("glm4_moe", glm4_moe::read),
    ("glm_moe_dsa", glm_moe_dsa::read),
    ("gpt_oss", gpt_oss::read),
    ("internlm2", internlm2::read),
    ("kimi_k2", deepseek_v3::read),
    ("llama", llama::read),
    ("mimo", mimo::read),
    ("minimax_m2", minimax_m2::read),
    ("mistral", mistral::read),
    ("mixtral", mixtral::read),
    ("olmo2", olmo2::read),
    ("olmo3", olmo3::read),
    ("phi3", phi3::read),
    ("qwen", qwen::read),
    ("qwen2", qwen2::read),
    ("qwen2_5_vl_text", qwen2_5_vl_text::read),
    ("qwen2_vl_text", qwen2_5_vl_text::read),
    ("qwen3", qwen3::read),
    ("qwen3_5_moe_text", qwen3_5_moe_text::read),
    ("qwen3_5_text", qwen3_5_text::read),
    ("qwen3_moe", qwen3_moe::read),
    ("qwen3_next", qwen3_next::read),
    ("qwen3_vl_moe_text", qwen3_vl_moe_text::read),
    ("qwen3_vl_text", qwen3_vl_text::read),
    ("smollm3", smollm3::read),
];

/// The decoder that `keys` describe, by their `model_type`.
pub(in crate::model) fn read_decoder(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let model_type = keys.text_or("model_type")?.ok_or_else(|| keys.missing("model_type"))?;
    read_decoder_as(model_type, keys, place)
}

/// The language model of a VLM whose configs leave out its `model_type` where that is Llama, and of Llama's sizes those that are
/// the defaults of its config class.
pub(in crate::model) fn read_decoder_or_llama(
    keys: &Keys<'_>,
    place: &NamePrefix,
) -> Result<DecoderConfig, ModelConfigError> {
    let sizes = json!({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32});
    match keys.text_or("model_type")? {
        None | Some("llama") => llama::read(&keys.instead(&keys.filled(&sizes)), place),
        Some(other) => read_decoder_as(other, keys, place),
    }
}

/// The decoder that `keys` describe, which is a `model_type` whatever they say.
pub(in crate::model) fn read_decoder_as(
    model_type: &str,
    keys: &Keys<'_>,
    place: &NamePrefix,
) -> Result<DecoderConfig, ModelConfigError> {
    match DECODERS.iter().find(|(name, _)| *name == model_type) {
        Some((_, read)) => read(&keys.instead(&with_kv_heads(model_type, keys)), place),
        None => {
            let supported: Vec<Value> = DECODERS.iter().map(|(name, _)| json!(name)).collect();
            Err(keys.unsupported("model_type", &json!(model_type), &supported))
        }
    }
}
