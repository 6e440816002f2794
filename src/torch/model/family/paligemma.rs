//! PaliGemma (`PaliGemmaForConditionalGeneration`): SigLIP's tower and one linear map before Gemma 1 (PaliGemma) or Gemma 2
//! (PaliGemma 2), in which pictures and prompt see all of themselves.

use serde_json::{Value, json};

use super::common::NamePrefix;
use super::gemma3::siglip;
use super::text_family::TextFamily;
use super::{gemma, gemma2, vision};
use crate::model::config::{ModelConfig, Tokens};
use crate::model::decoder::{DecoderConfig, Sees};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::section;
use crate::model::vision::{ProjectorConfig, ProjectorKind, VisionConfig};

type Result<T> = std::result::Result<T, ModelConfigError>;

const KNOWN: [TextFamily; 2] = [gemma::FAMILY, gemma2::FAMILY];

/// Reads the `config.json` of `PaliGemmaForConditionalGeneration`.
///
/// # Errors
/// A key is missing, or has a value that is not computed here.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    let place = NamePrefix::new("language_model.model.", "language_model.");
    let text = keys.section("text_config")?;
    let model_type = text.text_or("model_type")?.unwrap_or(gemma::FAMILY.model_type);
    let family = KNOWN.iter().find(|family| family.model_type == model_type);
    let Some((family, sizes)) = family.zip(sizes(model_type)) else {
        let known = KNOWN.map(|family| json!(family.model_type));
        return Err(text.unsupported("model_type", &json!(model_type), &known));
    };
    // Null stands for true here, and for false in a Gemma that is alone.
    text.only("use_bidirectional_attention", &[json!(true)])?;
    let mut filled = text.filled(&sizes);
    filled["use_bidirectional_attention"] = Value::Null;
    let decoder = family.read(&text.instead(&filled), &place)?;
    let decoder = DecoderConfig {
        // transformers' class does not cap the scores of Gemma 2's vocabulary, whatever `final_logit_softcapping` says.
        final_soft_cap: None,
        sees: Sees::Prompt,
        // The text model's own key is not read.
        tie_word_embeddings: keys.flag_or("tie_word_embeddings")?.unwrap_or(true),
        ..decoder
    };

    if decoder.layers.iter().any(|layer| layer.rope.depends_on_length()) {
        let must = "rotary embeddings by the text's length are not supported: PaliGemma counts positions from 1";
        let rope = section(&text)?.unwrap_or_else(|| text.clone());
        let key = if rope.value("rope_type").is_some() { "rope_type" } else { "type" };
        return Err(rope.inconsistent(key, rope.text_or(key)?.unwrap_or_default(), must));
    }
    let vision = keys.section("vision_config")?;
    let projected = keys.size_or("projection_dim")?.unwrap_or(2048);
    if projected != decoder.hidden_size {
        let must = format!("must equal text_config.hidden_size ({})", decoder.hidden_size);
        return Err(keys.inconsistent("projection_dim", projected, must));
    }
    let encoder = siglip(&vision, 1, decoder.hidden_size)?;
    let kind = ProjectorKind::Linear { name: "linear", bias: true };
    let encoder = VisionConfig { projector: ProjectorConfig { kind, ..encoder.projector }, ..encoder };
    let key = if keys.has("image_token_id") { "image_token_id" } else { "image_token_index" };
    // The class's.
    let filled = keys.filled(&json!({"image_token_index": 256_000}));
    let tokens = Tokens::with_image(&keys.instead(&filled), key, decoder.vocab_size)?;
    vision::model("paligemma", keys, decoder, encoder, tokens)
}

/// Returns the sizes of the text model's class: published configs may have those alone that differ.
fn sizes(model_type: &str) -> Option<Value> {
    match model_type {
        "gemma" => Some(json!({"vocab_size": 256_000, "hidden_size": 3072, "intermediate_size": 24576,
            "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16})),
        "gemma2" => Some(json!({"vocab_size": 256_000, "hidden_size": 2304, "intermediate_size": 9216,
            "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4})),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::config::ModelConfig;
    use crate::model::decoder::{MixerConfig, Sees};

    /// Returns the configs of PaliGemma 3B and PaliGemma 2 3B as published by Google.
    fn published() -> [Value; 2] {
        let vision = json!({"hidden_size": 1152, "intermediate_size": 4304, "model_type": "siglip_vision_model",
            "num_attention_heads": 16, "num_hidden_layers": 27, "num_image_tokens": 256, "patch_size": 14,
            "projection_dim": 2048, "projector_hidden_act": "gelu_fast", "vision_use_head": false});
        let mut vision2 = vision.clone();
        vision2["projection_dim"] = json!(2304);
        [
            json!({"model_type": "paligemma", "bos_token_id": 2, "eos_token_id": 1, "hidden_size": 2048,
                "ignore_index": -100, "image_token_index": 257_152, "pad_token_id": 0, "projection_dim": 2048,
                "text_config": {"hidden_size": 2048, "intermediate_size": 16384, "model_type": "gemma",
                    "num_attention_heads": 8, "num_hidden_layers": 18, "num_image_tokens": 256,
                    "num_key_value_heads": 1, "vocab_size": 257_216},
                "vision_config": vision}),
            json!({"model_type": "paligemma", "image_token_index": 257_152, "projection_dim": 2304,
                "text_config": {"hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304,
                    "intermediate_size": 9216, "model_type": "gemma2", "num_attention_heads": 8,
                    "num_hidden_layers": 26, "num_key_value_heads": 4, "query_pre_attn_scalar": 256,
                    "sliding_window": 4096, "use_bidirectional_attention": true, "vocab_size": 257_216},
                "vision_config": vision2}),
        ]
    }

    #[test]
    fn published_configs_are_read() {
        let models = published().map(|config| ModelConfig::from_hf(&config).unwrap());
        for (model, (width, layers, window)) in models.iter().zip([(2048, 18, None), (2304, 26, Some(4096))]) {
            let decoder = model.decoder().unwrap();
            assert_eq!((decoder.vocab_size, decoder.hidden_size, decoder.num_layers()), (257_216, width, layers));
            let MixerConfig::Attention(attention) = &decoder.layers[0].mixer else { unreachable!("Gemma attends") };
            assert_eq!((attention.window, attention.head_dim), (window, 256));
            assert_eq!((decoder.final_soft_cap, &decoder.sees), (None, &Sees::Prompt));
            assert!(decoder.tie_word_embeddings);
            let specs = model.towers.specs();
            let map = specs.iter().find(|spec| spec.name == "multi_modal_projector.linear.weight").unwrap();
            assert_eq!(map.shape, [width, 1152]);
        }
    }

    #[test]
    fn what_is_not_implemented_is_named() {
        for (pointer, value, expected) in [
            ("/text_config/model_type", json!("llama"), "text_config.model_type is \"llama\"; supported: \"gemma\""),
            (
                "/text_config/rope_scaling",
                json!({"type": "dynamic", "factor": 2}),
                "text_config.rope_scaling.type is dynamic, but rotary embeddings by the text's length",
            ),
            ("/projection_dim", json!(1024), "projection_dim is 1024, but must equal"),
            ("/vision_config/vision_use_head", json!(null), "vision_config.vision_use_head is true, but must be false"),
        ] {
            let [mut config, _] = published();
            config["text_config"]["rope_scaling"] = json!(null);
            config["text_config"]["max_position_embeddings"] = json!(8192);
            *config.pointer_mut(pointer).unwrap() = value;
            let message = ModelConfig::from_hf(&config).unwrap_err().to_string();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
        let [_, mut config] = published();
        config["text_config"]["use_bidirectional_attention"] = json!(false);
        let message = ModelConfig::from_hf(&config).unwrap_err().to_string();
        assert!(message.contains("use_bidirectional_attention is false"), "{message}");
    }
}
