//! A model as data: its parts, and the tokens that stand for something else than text.

use std::sync::Arc;

use super::decoder::DecoderConfig;
use super::encoder::EncoderFamily;
use super::keys::{Keys, ModelConfigError};
use super::tree_names::TreeNames;

/// A model as its parts: each part may be a pool of its own.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// Hugging Face's `model_type`.
    pub model_type: String,
    pub decoder: DecoderConfig,
    /// `None` for a language model.
    pub encoder: Option<Arc<dyn EncoderFamily>>,
    /// A tower of audio beside that of pictures.
    pub audio: Option<Arc<dyn EncoderFamily>>,
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
    /// Replaced by the features of clips of audio.
    pub audio: Option<i64>,
}

impl ModelConfig {
    /// Returns how many tensors of features the decoder takes for each picture: one, and one for each DeepStack layer.
    pub fn num_feature_tensors(&self) -> usize {
        self.towers().iter().map(|(tower, _)| tower.num_outputs()).max().unwrap_or(0)
    }

    /// Its towers, each with the tokens that its features replace.
    pub fn towers(&self) -> Vec<(Arc<dyn EncoderFamily>, Vec<i64>)> {
        let Tokens { image, video, audio, .. } = self.tokens;
        let of_first = [image, video, audio.filter(|_| self.audio.is_none())];
        let towers = [(&self.encoder, of_first), (&self.audio, [audio, None, None])];
        let named = |(tower, tokens): (&Option<Arc<dyn EncoderFamily>>, [Option<i64>; 3])| {
            tower.as_ref().map(|tower| (tower.clone(), tokens.into_iter().flatten().collect()))
        };
        towers.into_iter().filter_map(named).collect()
    }

    /// The tokens that features replace.
    pub fn placeholders(&self) -> Vec<i64> {
        [self.tokens.image, self.tokens.video, self.tokens.audio].into_iter().flatten().collect()
    }
}

impl Tokens {
    /// Qwen-VL's keys: `image_token_id`, `video_token_id`, `vision_start_token_id`, `vision_end_token_id`.
    pub(super) fn read(keys: &Keys<'_>, vocab_size: i64) -> Result<Tokens, ModelConfigError> {
        Tokens::with_image(keys, "image_token_id", vocab_size)
    }

    /// Works like `read`, with another key for the pictures' token.
    pub(super) fn with_image(keys: &Keys<'_>, image: &str, vocab_size: i64) -> Result<Tokens, ModelConfigError> {
        let id = Tokens::id(keys, image, vocab_size)?;
        // No text has a token that the decoder does not know: transformers writes such an id for Kimi-K2.5's videos.
        let other = |key: &str| keys.index_or(key).map(|id| id.filter(|id| *id < vocab_size));
        Ok(Tokens {
            image: Some(id),
            video: other("video_token_id")?,
            vision_start: other("vision_start_token_id")?,
            vision_end: other("vision_end_token_id")?,
            audio: None,
        })
    }

    /// The token of `key`, which the decoder must know.
    pub(super) fn id(keys: &Keys<'_>, key: &str, vocab_size: i64) -> Result<i64, ModelConfigError> {
        let id = keys.index_or(key)?.ok_or_else(|| keys.missing(key))?;
        if id < vocab_size {
            return Ok(id);
        }
        let must = format!(
            "must be below the decoder's vocab_size ({vocab_size}); for a token that was added to the tokenizer set \
             model.resize_embeddings=true"
        );
        Err(keys.inconsistent(key, id, must))
    }
}
