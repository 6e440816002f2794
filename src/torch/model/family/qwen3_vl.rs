//! Qwen3-VL, dense (`Qwen3VLForConditionalGeneration`): a vision transformer with DeepStack before a Qwen3 decoder whose
//! positions have three axes.

use std::sync::Arc;

use super::common::{Place, dense, uniform};
use super::qwen3::heads;
use crate::model::decoder::{DecoderConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::registry::{ModelConfig, Tokens};
use crate::model::rope_config::{read_mrope, read_rope};
use crate::model::vision_config::VisionConfig;

pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig, ModelConfigError> {
    let (text_keys, vision_keys) = (keys.section("text_config")?, keys.section("vision_config")?);
    let mut decoder = read_text(&text_keys, &Place::new("model.language_model.", ""))?;
    decoder.tie_word_embeddings = keys.flag_or("tie_word_embeddings")?.unwrap_or(decoder.tie_word_embeddings);
    let vision = VisionConfig::read(&vision_keys)?;
    if vision.out_hidden_size != decoder.hidden_size {
        let must = format!("must equal text_config.hidden_size ({})", decoder.hidden_size);
        return Err(vision_keys.inconsistent("out_hidden_size", vision.out_hidden_size, must));
    }
    if vision.deepstack_visual_indexes.len() > decoder.num_layers() {
        let found = format!("{:?}", vision.deepstack_visual_indexes);
        let must = format!("the decoder has only {} layers to add them to", decoder.num_layers());
        return Err(vision_keys.inconsistent("deepstack_visual_indexes", found, must));
    }
    Ok(ModelConfig {
        model_type: "qwen3_vl".into(),
        tokens: Tokens::read(keys, decoder.vocab_size)?,
        encoder: Some(Arc::new(vision)),
        decoder,
    })
}

/// The decoder (`Qwen3VLTextModel`).
pub(in crate::model) fn read_text(keys: &Keys<'_>, place: &Place) -> Result<DecoderConfig, ModelConfigError> {
    let attention = heads(keys)?;
    let mut rope = read_rope(keys, attention.head_dim, 500_000.0)?;
    rope.axes = read_mrope(keys, &rope, true)?;
    uniform(keys, place, MixerConfig::Attention(attention), dense(keys)?, rope)
}
