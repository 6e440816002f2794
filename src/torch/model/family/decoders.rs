//! Language models, alone or as a part of another model, by `model_type`.

use serde_json::{Value, json};

use super::NamePrefix;
use super::llama;
use super::text_family::TextFamily;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};

/// The families whose `model_type` a config may have, alone or as a part of another model. A decoder that stands in one model
/// only, and has no class of its own that saves it, is not among them.
pub(in crate::model) const DECODERS: &[TextFamily] = &[
    super::deepseek_v2::FAMILY,
    super::deepseek_v3::FAMILY,
    super::deepseek_v32::FAMILY,
    super::deepseek_v4::FAMILY,
    super::ernie4_5::FAMILY,
    super::ernie4_5_moe::FAMILY,
    super::ernie4_5_vl_text::FAMILY,
    super::exaone4::FAMILY,
    super::gemma::FAMILY,
    super::gemma2::FAMILY,
    super::gemma3_text::FAMILY,
    super::glm4::FAMILY,
    super::glm4_moe::FAMILY,
    super::glm4_moe_lite::FAMILY,
    super::glm_moe_dsa::FAMILY,
    super::gpt_oss::FAMILY,
    super::granite::FAMILY,
    super::hunyuan_v1_dense::FAMILY,
    super::internlm2::FAMILY,
    super::deepseek_v3::FAMILY.named("kimi_k2"),
    super::llama::FAMILY,
    super::mimo::FAMILY,
    super::minimax_m2::FAMILY,
    super::ministral3::FAMILY,
    super::mistral::FAMILY,
    super::mixtral::FAMILY,
    super::olmo2::FAMILY,
    super::olmo3::FAMILY,
    super::olmoe::FAMILY,
    super::phi3::FAMILY,
    super::qwen::FAMILY,
    super::qwen2::FAMILY,
    super::qwen2_5_vl_text::FAMILY,
    super::qwen2_5_vl_text::FAMILY.named("qwen2_vl_text"),
    super::qwen2_moe::FAMILY,
    super::qwen3::FAMILY,
    super::qwen3_5_moe_text::FAMILY,
    super::qwen3_5_text::FAMILY,
    super::qwen3_moe::FAMILY,
    super::qwen3_next::FAMILY,
    super::qwen3_vl_moe_text::FAMILY,
    super::qwen3_vl_text::FAMILY,
    super::seed_oss::FAMILY,
    super::smollm3::FAMILY,
];

/// Returns the decoder that `keys` describe, by their `model_type`.
///
/// # Errors
/// There is no such family, or a key is missing, wrong or not implemented; the error names it.
pub(in crate::model) fn read_decoder(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let model_type = keys.text_or("model_type")?.ok_or_else(|| keys.missing("model_type"))?;
    match DECODERS.iter().find(|family| family.model_type == model_type) {
        Some(family) => family.read(keys, place),
        None => {
            let supported: Vec<Value> = DECODERS.iter().map(|family| json!(family.model_type)).collect();
            Err(keys.unsupported("model_type", &json!(model_type), &supported))
        }
    }
}

/// Returns the language model of a VLM whose configs leave out its `model_type` where that is Llama, and sizes that are the defaults both
/// of Llama's config class and of the language model's own.
pub(in crate::model) fn read_decoder_or_llama(
    keys: &Keys<'_>,
    place: &NamePrefix,
) -> Result<DecoderConfig, ModelConfigError> {
    let common = json!({"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32});
    let filled = keys.filled(&common);
    let keys_of_both = keys.instead(&filled);
    match keys.text_or("model_type")? {
        None | Some("llama") => {
            let sizes = keys_of_both.filled(&json!({"vocab_size": 32000, "intermediate_size": 11008}));
            llama::FAMILY.read(&keys.instead(&sizes), place)
        }
        Some("mistral") => read_decoder(&keys.instead(&keys_of_both.filled(&json!({"vocab_size": 32000}))), place),
        Some("qwen2") => read_decoder(&keys_of_both, place),
        Some(_) => read_decoder(keys, place),
    }
}
