//! What families with a vision tower have in common.

use std::sync::Arc;

use super::common::Place;
use crate::model::decoder::DecoderConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::registry::{ModelConfig, Tokens, read_decoder, read_decoder_as};
use crate::model::vision::VisionConfig;

type Result<T> = std::result::Result<T, ModelConfigError>;

/// A decoder inside of a multimodal model: `keys` are the model's, `text_keys` the decoder's, whose `model_type` is
/// `default` where it has none. The model's `tie_word_embeddings` goes before the decoder's.
pub(super) fn text(keys: &Keys<'_>, text_keys: &Keys<'_>, place: &Place, default: &str) -> Result<DecoderConfig> {
    let decoder = match text_keys.text_or("model_type")? {
        Some(_) => read_decoder(text_keys, place)?,
        None => read_decoder_as(default, text_keys, place)?,
    };
    tied(keys, decoder)
}

/// The model's `tie_word_embeddings` goes before the decoder's.
pub(super) fn tied(keys: &Keys<'_>, decoder: DecoderConfig) -> Result<DecoderConfig> {
    let tie_word_embeddings = keys.flag_or("tie_word_embeddings")?.unwrap_or(decoder.tie_word_embeddings);
    Ok(DecoderConfig { tie_word_embeddings, ..decoder })
}

/// Refuses a width of features, where the encoder's config has one, that is not the decoder's.
pub(super) fn check_width(vision_keys: &Keys<'_>, key: &str, decoder: &DecoderConfig) -> Result<()> {
    match vision_keys.size_or(key)? {
        Some(width) if width != decoder.hidden_size => {
            let must = format!("must equal text_config.hidden_size ({})", decoder.hidden_size);
            Err(vision_keys.inconsistent(key, width, must))
        }
        _ => Ok(()),
    }
}

/// The model of these parts; a decoder has a layer for every DeepStack level.
pub(super) fn model(
    model_type: &str,
    keys: &Keys<'_>,
    decoder: DecoderConfig,
    vision: VisionConfig,
    tokens: Tokens,
) -> Result<ModelConfig> {
    if vision.deepstack.len() > decoder.num_layers() {
        let found = format!("{:?}", vision.tower.deepstack);
        let must = format!("the decoder has only {} layers to add them to", decoder.num_layers());
        return Err(keys.inconsistent("vision_config.deepstack_visual_indexes", found, must));
    }
    Ok(ModelConfig { model_type: model_type.into(), decoder, encoder: Some(Arc::new(vision)), tokens })
}
