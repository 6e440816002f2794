//! Describes which model a `config.json` describes.

use std::sync::Arc;

use serde_json::{Value, json};

use super::decoder::DecoderConfig;
use super::family::{
    Place, custom, deepseek_v2, deepseek_v3, deepseek_v32, ernie4_5, ernie4_5_moe, ernie4_5_vl, ernie4_5_vl_text,
    glm_moe_dsa, internlm2, internvl, kimi_k25, llama, llava_onevision1_5, mimo, minimax_m2, qwen, qwen2, qwen2_5_vl,
    qwen3, qwen3_5, qwen3_5_moe, qwen3_moe, qwen3_next, qwen3_vl, qwen3_vl_moe,
};
use super::interface::EncoderFamily;
use super::keys::{Keys, ModelConfigError};
use super::tree_names::TreeNames;

type ReadDecoder = fn(&Keys<'_>, &Place) -> Result<DecoderConfig, ModelConfigError>;
type ReadModel = fn(&Keys<'_>) -> Result<ModelConfig, ModelConfigError>;

/// Language models, alone or as a part of another model, by `model_type`.
const DECODERS: &[(&str, ReadDecoder)] = &[
    ("deepseek_v2", deepseek_v2::read),
    ("deepseek_v3", deepseek_v3::read),
    ("deepseek_v32", deepseek_v32::read),
    ("ernie4_5", ernie4_5::read),
    ("ernie4_5_moe", ernie4_5_moe::read),
    ("ernie4_5_vl_moe_text", ernie4_5_vl_text::read),
    ("glm_moe_dsa", glm_moe_dsa::read),
    ("internlm2", internlm2::read),
    ("kimi_k2", deepseek_v3::read),
    ("llama", llama::read),
    ("mimo", mimo::read),
    ("minimax_m2", minimax_m2::read),
    ("qwen", qwen::read),
    ("qwen2", qwen2::read),
    ("qwen2_5_vl_text", qwen2_5_vl::read_text),
    ("qwen3", qwen3::read),
    ("qwen3_5_moe_text", qwen3_5_moe::read_text),
    ("qwen3_5_text", qwen3_5::read_text),
    ("qwen3_moe", qwen3_moe::read),
    ("qwen3_next", qwen3_next::read),
    ("qwen3_vl_moe_text", qwen3_vl_moe::read_text),
    ("qwen3_vl_text", qwen3_vl::read_text),
];

/// Models with an encoder, by `model_type`.
const MODELS: &[(&str, ReadModel)] = &[
    ("ernie4_5_moe_vl", ernie4_5_vl::read),
    ("ernie4_5_vl_moe", ernie4_5_vl::read),
    ("internvl", internvl::read),
    ("internvl_chat", internvl::read_original),
    ("kimi_k25", kimi_k25::read),
    ("llavaonevision1_5", llava_onevision1_5::read),
    ("loongforge_vlm", custom::read),
    ("qwen2_5_vl", qwen2_5_vl::read),
    ("qwen3_5", qwen3_5::read),
    ("qwen3_5_moe", qwen3_5_moe::read),
    ("qwen3_vl", qwen3_vl::read),
    ("qwen3_vl_moe", qwen3_vl_moe::read),
];

/// Experts of all layers together: each has names and shapes of its own before there is any weight.
const MAX_EXPERTS: i64 = 1 << 18;

/// A model as its parts: each part may be a pool of its own.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// Hugging Face's `model_type`.
    pub model_type: String,
    pub decoder: DecoderConfig,
    /// `None` for a language model.
    pub encoder: Option<Arc<dyn EncoderFamily>>,
    pub tokens: Tokens,
    /// Holds what transformers calls its modules.
    pub tree: TreeNames,
}

/// The tokens of a multimodal model that stand for something else than text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Replaced by the features of pictures.
    pub image: Option<i64>,
    /// Replaced by the features of videos.
    pub video: Option<i64>,
    pub vision_start: Option<i64>,
    pub vision_end: Option<i64>,
}

impl ModelConfig {
    /// Reads a parsed `config.json`, as transformers 4 and 5 write it.
    pub fn from_hf(config: &Value) -> Result<ModelConfig, ModelConfigError> {
        let model = ModelConfig::read(config)?;
        let (experts, most) = (model.decoder.num_all_experts(), MAX_EXPERTS);
        match experts > most {
            true => {
                Err(Keys::new(config).inconsistent("experts of all layers", experts, format!("must be at most {most}")))
            }
            false => Ok(model),
        }
    }

    fn read(config: &Value) -> Result<ModelConfig, ModelConfigError> {
        let keys = Keys::new(config);
        let model_type = keys.text_or("model_type")?.ok_or_else(|| keys.missing("model_type"))?;
        if let Some((_, read)) = MODELS.iter().find(|(name, _)| *name == model_type) {
            return Ok(read(&keys)?.with_tree(config));
        }
        if DECODERS.iter().all(|(name, _)| *name != model_type) {
            let supported: Vec<Value> = Self::supported().map(|name| json!(name)).collect();
            return Err(keys.unsupported("model_type", &json!(model_type), &supported));
        }
        let decoder = read_decoder(&keys, &Place::alone())?;
        let (model_type, tree) = (model_type.to_owned(), TreeNames::default());
        let model = ModelConfig { model_type, decoder, encoder: None, tokens: Tokens::default(), tree };
        Ok(model.with_tree(config))
    }

    /// The same with the names of the modules of the model that `config` describes.
    fn with_tree(self, config: &Value) -> ModelConfig {
        let (tree, names) = (TreeNames::of(config), &self.decoder.names);
        let tree = if self.decoder.tie_word_embeddings { tree.with_tied(&names.embed, &names.head) } else { tree };
        ModelConfig { tree, ..self }
    }

    /// Every `model_type` that is built in.
    pub fn supported() -> impl Iterator<Item = &'static str> {
        DECODERS.iter().map(|(name, _)| *name).chain(MODELS.iter().map(|(name, _)| *name))
    }

    /// Returns how many tensors of features the decoder takes for each picture: one, and one for each DeepStack layer.
    pub fn num_feature_tensors(&self) -> usize {
        self.encoder.as_ref().map_or(0, |encoder| encoder.num_outputs())
    }

    /// The tokens that features replace.
    pub fn placeholders(&self) -> Vec<i64> {
        self.tokens.image.into_iter().chain(self.tokens.video).collect()
    }
}

/// The decoder that `keys` describe, by their `model_type`.
pub(super) fn read_decoder(keys: &Keys<'_>, place: &Place) -> Result<DecoderConfig, ModelConfigError> {
    let model_type = keys.text_or("model_type")?.ok_or_else(|| keys.missing("model_type"))?;
    read_decoder_as(model_type, keys, place)
}

/// The decoder that `keys` describe, which is a `model_type` whatever they say.
pub(super) fn read_decoder_as(
    model_type: &str,
    keys: &Keys<'_>,
    place: &Place,
) -> Result<DecoderConfig, ModelConfigError> {
    match DECODERS.iter().find(|(name, _)| *name == model_type) {
        Some((_, read)) => read(keys, place),
        None => {
            let supported: Vec<Value> = DECODERS.iter().map(|(name, _)| json!(name)).collect();
            Err(keys.unsupported("model_type", &json!(model_type), &supported))
        }
    }
}

impl Tokens {
    /// Qwen-VL's keys: `image_token_id`, `video_token_id`, `vision_start_token_id`, `vision_end_token_id`.
    pub(super) fn read(keys: &Keys<'_>, vocab_size: i64) -> Result<Tokens, ModelConfigError> {
        Tokens::with_image(keys, "image_token_id", vocab_size)
    }

    /// Works like `read`, with another key for the pictures' token.
    pub(super) fn with_image(keys: &Keys<'_>, image: &str, vocab_size: i64) -> Result<Tokens, ModelConfigError> {
        let id = keys.index_or(image)?.ok_or_else(|| keys.missing(image))?;
        if id >= vocab_size {
            let must = format!(
                "must be below the decoder's vocab_size ({vocab_size}); for a token that was added to the tokenizer set \
                 model.resize_embeddings=true"
            );
            return Err(keys.inconsistent(image, id, must));
        }
        // No text has a token that the decoder does not know: transformers writes such an id for Kimi-K2.5's videos.
        let other = |key: &str| keys.index_or(key).map(|id| id.filter(|id| *id < vocab_size));
        Ok(Tokens {
            image: Some(id),
            video: other("video_token_id")?,
            vision_start: other("vision_start_token_id")?,
            vision_end: other("vision_end_token_id")?,
        })
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!((config.decoder.rope.theta, &config.decoder.rope.axes), (5e6, &RopeAxes::interleaved(12, [4, 4])));
        assert!(config.decoder.tie_word_embeddings && config.decoder.pad_token_id.is_none());
        assert_eq!(config.num_feature_tensors(), 3);
    }

    #[test]
    fn errors_name_the_key_and_what_it_must_be() {
        let cases = [
            ("/model_type", json!("gpt2"), r#"model_type is "gpt2"; supported: ""#),
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
}
