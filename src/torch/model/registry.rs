//! Which model a `config.json` describes.

use serde_json::{Value, json};

use super::keys::{Keys, ModelConfigError};
use super::text_config::TextConfig;
use super::vision_config::VisionConfig;

/// A model as its parts: each part may be a pool of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Hugging Face's `model_type`.
    pub model_type: String,
    pub text: TextConfig,
    /// `None` for a language model.
    pub vision: Option<VisionConfig>,
    /// The tokens that stand for pictures; of a language model none.
    pub image_token_id: Option<i64>,
    pub vision_start_token_id: Option<i64>,
    pub vision_end_token_id: Option<i64>,
}

impl ModelConfig {
    /// Reads a parsed `config.json`, as transformers 4 and 5 write it.
    pub fn from_hf(config: &Value) -> Result<ModelConfig, ModelConfigError> {
        let keys = Keys::new(config);
        match keys.text_or("model_type")? {
            Some("qwen3") => Ok(ModelConfig {
                model_type: "qwen3".into(),
                text: TextConfig::read(&keys, None, false)?,
                vision: None,
                image_token_id: None,
                vision_start_token_id: None,
                vision_end_token_id: None,
            }),
            Some("qwen3_vl") => qwen3_vl(&keys),
            Some(_) => {
                let found = keys.value("model_type").expect("it is a string");
                Err(keys.unsupported("model_type", found, &[json!("qwen3"), json!("qwen3_vl")]))
            }
            None => Err(keys.missing("model_type")),
        }
    }

    /// How many tensors of features the decoder takes for each picture: one, and one for each DeepStack layer.
    pub fn num_feature_tensors(&self) -> usize {
        self.vision.as_ref().map_or(0, |vision| 1 + vision.deepstack_visual_indexes.len())
    }
}

fn qwen3_vl(keys: &Keys<'_>) -> Result<ModelConfig, ModelConfigError> {
    let text_keys = keys.section("text_config")?;
    let vision_keys = keys.section("vision_config")?;
    let text = TextConfig::read(&text_keys, keys.flag_or("tie_word_embeddings")?, true)?;
    let vision = VisionConfig::read(&vision_keys)?;
    if vision.out_hidden_size != text.hidden_size {
        let must = format!("must equal text_config.hidden_size ({})", text.hidden_size);
        return Err(vision_keys.inconsistent("out_hidden_size", vision.out_hidden_size, must));
    }
    if vision.deepstack_visual_indexes.len() as i64 > text.num_hidden_layers {
        let found = format!("{:?}", vision.deepstack_visual_indexes);
        let must = format!("the decoder has only {} layers to add them to", text.num_hidden_layers);
        return Err(vision_keys.inconsistent("deepstack_visual_indexes", found, must));
    }
    let token = |key: &str| match keys.index_or(key)? {
        Some(id) if id >= text.vocab_size => {
            let must = format!("must be below text_config.vocab_size ({})", text.vocab_size);
            Err(keys.inconsistent(key, id, must))
        }
        id => Ok(id),
    };
    let image_token_id = token("image_token_id")?;
    if image_token_id.is_none() {
        return Err(keys.missing("image_token_id"));
    }
    Ok(ModelConfig {
        model_type: "qwen3_vl".into(),
        image_token_id,
        vision_start_token_id: token("vision_start_token_id")?,
        vision_end_token_id: token("vision_end_token_id")?,
        vision: Some(vision),
        text,
    })
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
        assert_eq!((config.text.rope.theta, &config.text.rope.axes), (5e6, &RopeAxes::interleaved([4, 4, 4])));
        assert!(config.text.tie_word_embeddings && config.text.pad_token_id.is_none());
        assert_eq!(config.num_feature_tensors(), 3);
    }

    #[test]
    fn errors_name_the_key_and_what_it_must_be() {
        let cases = [
            ("/model_type", json!("llama"), r#"model_type is "llama"; supported: "qwen3", "qwen3_vl""#),
            ("/text_config/hidden_size", json!(null), "text_config.hidden_size is missing"),
            ("/text_config/hidden_size", json!("64"), "text_config.hidden_size must be a positive integer, not \"64\""),
            ("/text_config/rope_scaling/rope_type", json!("su"), "text_config.rope_scaling.rope_type is \"su\""),
            ("/text_config/rope_scaling/mrope_section", json!([4, 4]), "with the sum 12"),
            ("/text_config/num_key_value_heads", json!(3), "must divide num_attention_heads (4)"),
            ("/vision_config/out_hidden_size", json!(65), "must equal text_config.hidden_size (64)"),
            ("/vision_config/deepstack_visual_indexes", json!([0, 3]), "must be different blocks below depth (3)"),
            ("/vision_config/num_position_embeddings", json!(63), "must be a square"),
            ("/image_token_id", json!(320), "must be below text_config.vocab_size (320)"),
        ];
        for (pointer, value, expected) in cases {
            let message = error(pointer, value);
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
