//! Describes which model a `config.json` describes.

use serde_json::{Value, json};

use super::bart::EncoderDecoderConfig;
use super::config::ModelConfig;
use super::decoder::DecoderConfig;
use super::family::decoders::{DECODERS, read_decoder};
use super::family::{self, NamePrefix};
use super::keys::{Keys, ModelConfigError};
use super::own::{own_foundation, own_foundations, own_model};
use super::towers::Towers;
use super::tree_names::TreeNames;

type ReadModel = fn(&Keys<'_>) -> Result<ModelConfig, ModelConfigError>;

/// Models with an encoder, by `model_type`.
const MODELS: &[(&str, ReadModel)] = &[
    ("Gr00tN1d6", family::groot::read),
    ("Gr00tN1d7", family::groot::read),
    ("ernie4_5_moe_vl", family::ernie4_5_vl::read),
    ("ernie4_5_vl_moe", family::ernie4_5_vl::read),
    ("fastwam", family::fastwam::read),
    ("florence2", family::florence2::read),
    ("gemma3", family::gemma3::read),
    ("groot", family::groot::read_lerobot),
    ("idefics3", family::smolvlm::read_idefics3),
    ("internvl", family::internvl::read),
    ("internvl_chat", family::internvl::read_original),
    ("kimi_k25", family::kimi_k25::read),
    ("llava", family::llava::read),
    ("llavaonevision1_5", family::llava_onevision1_5::read),
    ("loongforge_diffusion", family::diffusion::read),
    ("loongforge_vlm", family::custom::read),
    ("minicpmv4_6", family::minicpm::read),
    ("paligemma", family::paligemma::read),
    ("pi0", family::pi::read_pi0),
    ("pi05", family::pi::read_pi05),
    ("pi0_fast", family::pi0_fast::read),
    ("qwen2_5_omni", family::qwen2_5_omni::read),
    ("qwen2_5_omni_thinker", family::qwen2_5_omni::read_thinker),
    ("qwen2_5_vl", family::qwen2_5_vl::read),
    ("qwen2_audio", family::qwen2_audio::read),
    ("qwen2_vl", family::qwen2_vl::read),
    ("qwen3_5", family::qwen3_5::read),
    ("qwen3_5_moe", family::qwen3_5_moe::read),
    ("qwen3_asr", family::qwen3_asr::read),
    ("qwen3_omni_moe", family::qwen3_omni_moe::read),
    ("qwen3_omni_moe_thinker", family::qwen3_omni_moe::read_thinker),
    ("qwen3_vl", family::qwen3_vl::read),
    ("qwen3_vl_moe", family::qwen3_vl_moe::read),
    ("smolvla", family::smolvla::read),
    ("smolvlm", family::smolvlm::read),
    ("voxtral", family::voxtral::read),
    ("xvla", family::xvla::read),
];

/// Models that are asked for and are not there, with the reason.
const MISSING: &[(&str, &str)] = &[
    (
        "kimi_k3",
        "Kimi K3 is not implemented: transformers 5.17, which families are compared with, has no class for it; its code is \
         published only with its weights",
    ),
    ("kimi_linear", "Kimi-Linear is not implemented: delta attention with a decay per channel (KDA) is not supported"),
];

/// Experts of all layers together: each has names and shapes of its own before there is any weight.
pub(super) const MAX_EXPERTS: i64 = 1 << 18;

impl ModelConfig {
    /// Reads a parsed `config.json`, as transformers 4 and 5 write it.
    ///
    /// # Errors
    /// No family has its `model_type`, or a key is missing, wrong or not implemented: the error names it.
    pub fn from_hf(config: &Value) -> Result<ModelConfig, ModelConfigError> {
        let model = ModelConfig::read(config)?;
        let (experts, most) = (model.decoder().map_or(0, DecoderConfig::num_all_experts), MAX_EXPERTS);
        match experts > most {
            true => Err(Keys::new(config).inconsistent(
                "number of experts in all layers",
                experts,
                format!("must be at most {most}"),
            )),
            false => Ok(model),
        }
    }

    fn read(config: &Value) -> Result<ModelConfig, ModelConfigError> {
        let keys = Keys::new(config);
        // Policies of lerobot call it `type`.
        let model_type = match keys.text_or("model_type")? {
            Some(model_type) => model_type,
            None => keys.text_or("type")?.ok_or_else(|| keys.missing("model_type"))?,
        };
        if let Some((_, read)) = MODELS.iter().find(|(name, _)| *name == model_type) {
            return Ok(read(&keys)?.with_tree(config));
        }
        if let Some(foundation) = own_foundation("", config, &[])? {
            return Ok(own_model(model_type, foundation, Towers::default()));
        }
        if let Some((_, reason)) = MISSING.iter().find(|(name, _)| *name == model_type) {
            return Err(keys.inconsistent("model_type", format!("{model_type:?}"), *reason));
        }
        if DECODERS.iter().all(|family| family.model_type != model_type) {
            let supported = Self::supported().chain(own_foundations());
            let supported: Vec<Value> = supported.map(|name| json!(name)).collect();
            return Err(keys.unsupported("model_type", &json!(model_type), &supported));
        }
        let decoder = read_decoder(&keys, &NamePrefix::alone())?;
        Ok(ModelConfig::new(model_type, decoder, Vec::new()).with_tree(config))
    }

    /// Returns the same model with the names of the modules of the model that `config` describes.
    fn with_tree(self, config: &Value) -> ModelConfig {
        let tied = self.decoder().filter(|decoder| decoder.tie_word_embeddings).map(|decoder| &decoder.names);
        let both = self.foundation.as_encoder_decoder().map(EncoderDecoderConfig::table);
        let tree = match (tied, both) {
            (Some(names), _) => TreeNames::of(config).with_tied(&names.embed, &names.head),
            (None, Some(table)) => TreeNames::of(config).with_tied(&table, EncoderDecoderConfig::HEAD),
            (None, None) => TreeNames::of(config),
        };
        ModelConfig { tree, ..self }
    }

    /// Returns every `model_type` that is built in.
    pub fn supported() -> impl Iterator<Item = &'static str> {
        DECODERS.iter().map(|family| family.model_type).chain(MODELS.iter().map(|(name, _)| *name))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use loongforge_core::data::{ModelCard, PositionKind};
    use loongforge_core::message::Tower;
    use serde_json::{Value, json};

    use super::ModelConfig;
    use crate::nn::RopeAxes;

    fn qwen3_vl() -> Value {
        json!({
            "model_type": "qwen3_vl", "image_token_id": 301, "vision_start_token_id": 303, "vision_end_token_id": 304,
            "tie_word_embeddings": true,
            "text_config": {
                "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "pad_token_id": null,
                "rope_scaling": {"rope_type": "default", "mrope_interleaved": true, "mrope_section": [4, 4, 4]},
                "rope_theta": 5e6
            },
            "vision_config": {
                "depth": 3, "hidden_size": 48, "intermediate_size": 80, "num_heads": 3, "patch_size": 16,
                "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 64,
                "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]
            }
        })
    }

    fn error(pointer: &str, value: Value) -> String {
        let mut config = qwen3_vl();
        *config.pointer_mut(pointer).expect("the key is there") = value;
        ModelConfig::from_hf(&config).unwrap_err().to_string()
    }

    #[test]
    fn a_config_of_transformers_4_is_read() {
        let config = ModelConfig::from_hf(&qwen3_vl()).unwrap();
        let decoder = config.decoder().unwrap();
        let rope = &decoder.layers[0].rope;
        assert_eq!((rope.theta, &rope.axes), (5e6, &RopeAxes::interleaved(12, [4, 4])));
        assert!(decoder.tie_word_embeddings && decoder.pad_token_id.is_none());
        assert_eq!(config.inputs()[0].num_tensors, 3);
    }

    #[test]
    fn errors_name_the_key_and_what_it_must_be() {
        let cases = [
            ("/model_type", json!("gpt2"), r#"model_type is "gpt2"; supported: ""#),
            (
                "/model_type",
                json!("kimi_k3"),
                r#"model_type is "kimi_k3", but Kimi K3 is not implemented: transformers"#,
            ),
            ("/text_config/hidden_size", json!(null), "text_config.hidden_size is missing"),
            ("/text_config/hidden_size", json!("64"), "text_config.hidden_size must be a positive integer, not \"64\""),
            ("/text_config/rope_scaling/rope_type", json!("su"), "text_config.rope_scaling.rope_type is \"su\""),
            ("/text_config/rope_scaling/mrope_section", json!([4, 4]), "must be three numbers"),
            ("/text_config/num_key_value_heads", json!(3), "must divide num_attention_heads (4)"),
            ("/vision_config/out_hidden_size", json!(65), "must equal text_config.hidden_size (64)"),
            ("/vision_config/deepstack_visual_indexes", json!([0, 3]), "must be different blocks below depth (3)"),
            ("/image_token_id", json!(320), "must be below the decoder's vocab_size (320)"),
        ];
        for (pointer, value, expected) in cases {
            let message = error(pointer, value);
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }

    /// Every family's fixture: the card, which data is made by, and the model agree.
    #[test]
    fn cards_say_what_models_are() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let mut families = BTreeSet::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let Ok(text) = std::fs::read_to_string(path.join("config.json")) else { continue };
            let config: Value = serde_json::from_str(&text).unwrap();
            let (model, name) = (ModelConfig::from_hf(&config).unwrap(), path.display());
            let whole = json!({"model_type": "x", "thinker_config": config});
            for card in [ModelCard::of(&config), ModelCard::of(&whole)] {
                let text = card.text();
                let sizes = [&text["vocab_size"], &text["hidden_size"]].map(|size| size.as_i64());
                let decoder = model.decoder().expect("these families are decoders");
                let expected = [decoder.vocab_size, decoder.hidden_size].map(Some);
                assert_eq!(sizes, expected, "{name}");
                for (tower, section) in [(Tower::Vision, card.vision()), (Tower::Audio, card.audio())] {
                    let input = model.towers.iter().find(|it| it.tower == tower);
                    assert_eq!(section.is_some(), input.is_some(), "{name}: {tower}");
                    let Some(input) = input else { continue };
                    // InternVL's own layout says it in the tokenizer alone.
                    if let Some(id) = card.placeholder(tower) {
                        assert!(input.placeholders.contains(&id), "{name}: {tower} at {id}");
                    }
                }
                assert_eq!(card.vision().is_some(), card.vision_cut().is_some(), "{name}");
                assert_eq!(card.audio().is_some(), card.audio_family().is_some(), "{name}");
                let has_axes = decoder.has_three_axes();
                if !model.towers.is_empty() {
                    assert_eq!(card.positions() == PositionKind::Multimodal, has_axes, "{name}");
                }
            }
            families.insert(model.model_type);
        }
        assert!(families.len() > 30, "{families:?}");
    }
}
