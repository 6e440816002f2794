//! A model as its parts, and the tokens that stand for something else than text.

use std::sync::Arc;

use super::bart::EncoderDecoderConfig;
use super::decoder::{DecoderConfig, DecoderFamily};
use super::foundation::FoundationFamily;
use super::keys::{Keys, ModelConfigError};
use super::objective::FlowSettings;
use super::policy::PolicyOptions;
use super::towers::{FeatureInput, ModelTower, Towers};
use super::tree_names::TreeNames;
use crate::params::ParamSpec;
use loongforge_core::data::{DIFFUSION, FASTWAM};
use loongforge_core::message::{PoolName, Tower};

/// A model as its parts: each part may be a pool of its own.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// Hugging Face's `model_type`.
    pub model_type: String,
    pub foundation: Arc<dyn FoundationFamily>,
    /// The transformer of low noise, where the foundation is that of high noise and a run has both.
    pub low_noise: Option<Arc<dyn FoundationFamily>>,
    /// None for a language model.
    pub towers: Towers,
    /// The names that transformers gives to its modules.
    pub tree: TreeNames,
    pub carried: CarriedParts,
}

/// Parts of a whole checkpoint that are not trained here and that checkpoints carry unchanged: the talker and the vocoder of
/// an Omni model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CarriedParts {
    /// The beginnings of their tensors' names. The section of `config.json` for the prefix `talker.`, for example, is `talker_config`.
    pub prefixes: &'static [&'static str],
    /// The key of `config.json` that says whether they are there, where one does.
    pub flag: Option<&'static str>,
}

/// The tokens of a model with a vision tower that stand for something else than text.
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
    /// Returns a decoder with these towers, without the names of its modules.
    pub(super) fn new(model_type: &str, decoder: DecoderConfig, towers: Vec<ModelTower>) -> ModelConfig {
        let towers = Towers::new(towers);
        let foundation = Arc::new(DecoderFamily::new(decoder.clone(), towers.inputs(decoder.hidden_size)));
        let (tree, carried) = (TreeNames::default(), CarriedParts::default());
        ModelConfig { model_type: model_type.into(), foundation, low_noise: None, towers, tree, carried }
    }

    /// Returns whether a checkpoint has a folder for each of its networks: of a diffusion model, or of a policy with such networks
    /// beside it.
    pub fn has_network_folders(&self) -> bool {
        [DIFFUSION, FASTWAM].contains(&self.model_type.as_str())
    }

    /// Returns the features that the foundation takes from each tower.
    pub fn inputs(&self) -> &[FeatureInput] {
        self.foundation.inputs()
    }

    /// Returns the decoder, where the foundation is one.
    pub fn decoder(&self) -> Option<&DecoderConfig> {
        self.foundation.as_decoder()
    }

    /// Returns the names in files of the table of tokens and of the head, where these are one tensor.
    pub fn tied_head(&self) -> Option<[String; 2]> {
        let modules = match (self.decoder(), self.foundation.as_encoder_decoder()) {
            (Some(decoder), _) if decoder.tie_word_embeddings => {
                [decoder.names.embed.clone(), decoder.names.head.clone()]
            }
            (None, Some(both)) => [both.table(), EncoderDecoderConfig::HEAD.to_owned()],
            _ => return None,
        };
        Some(modules.map(|module| format!("{module}.weight")))
    }

    /// Changes the decoder; `None` where the foundation is none.
    pub fn edit_decoder<T>(&mut self, edit: impl FnOnce(&mut DecoderConfig) -> T) -> Option<T> {
        let mut decoder = self.decoder()?.clone();
        let found = edit(&mut decoder);
        self.foundation = Arc::new(DecoderFamily::new(decoder, self.inputs().to_vec()));
        Some(found)
    }

    /// Returns the model with these settings of its loss; `None`: the foundation does not learn velocities. An autoencoder whose latents
    /// have no distribution gives what it gave, and nothing is drawn.
    pub fn with_flow(mut self, flow: FlowSettings) -> Option<ModelConfig> {
        let tower = self.towers.get(Tower::Vae).filter(|_| flow.draws_latents);
        let tower = tower.and_then(|tower| tower.with_deviations());
        let flow = FlowSettings { draws_latents: tower.is_some(), ..flow };
        if let Some(tower) = tower {
            self.towers.replace(Tower::Vae, tower);
        }
        let low_noise = self.low_noise.as_ref().map(|low_noise| low_noise.with_flow(flow.clone()));
        let low_noise = low_noise.map_or(Some(None), |low_noise| low_noise.map(Some))?;
        Some(ModelConfig { foundation: self.foundation.with_flow(flow)?, low_noise, ..self })
    }

    /// Returns the model with these settings of a policy's training; `None`: the model is no policy.
    pub fn with_policy(self, options: PolicyOptions) -> Option<ModelConfig> {
        Some(ModelConfig { foundation: self.foundation.with_policy(options)?, ..self })
    }

    /// Returns the model with the vision-language model before a policy's actions as its only tower; `None`: it cannot be split so.
    pub fn with_prefix_tower(&self) -> Option<ModelConfig> {
        let (foundation, tower) = self.foundation.with_prefix_tower(&self.towers)?;
        Some(ModelConfig { foundation, towers: Towers::new(vec![tower]), ..self.clone() })
    }

    /// Returns the foundation that the actors of a pool have.
    pub fn foundation_of(&self, pool: PoolName) -> &Arc<dyn FoundationFamily> {
        self.low_noise.as_ref().filter(|_| pool == PoolName::FOUNDATION_LOW).unwrap_or(&self.foundation)
    }

    /// Returns the foundation, or the two of high and of low noise.
    pub fn foundations(&self) -> impl Iterator<Item = &Arc<dyn FoundationFamily>> {
        std::iter::once(&self.foundation).chain(&self.low_noise)
    }

    /// Returns all parameters of the model: the foundations', and then those of the towers.
    pub fn specs(&self) -> Vec<ParamSpec> {
        let foundations = self.foundations().flat_map(|foundation| foundation.specs());
        foundations.chain(self.towers.specs()).collect()
    }
}

impl Tokens {
    /// Returns the tokens that features of pictures and videos replace.
    pub(super) fn placeholders(&self) -> Vec<i64> {
        self.image.into_iter().chain(self.video).collect()
    }

    /// Reads the tokens under Qwen-VL's keys: `image_token_id`, `video_token_id`, `vision_start_token_id`, `vision_end_token_id`.
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
        })
    }

    /// Returns the token of `key`, which the decoder must know.
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
