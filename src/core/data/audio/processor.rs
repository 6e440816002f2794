//! Makes of a recording what a sample holds: frames for the tower, and placeholders in the text.

use serde_json::Value as Json;

use super::augment::SoundChange;
use super::family::FrontEnd;
use super::settings::AudioSettings;
use crate::config::AudioLimits;
use crate::data::card::ModelCard;
use crate::data::error::DataError;
use crate::data::media::{Expansion, Marker, Run};
use crate::data::processor::ProcessorFolders;
use crate::data::sample::Media;
use crate::data::tokenizer::Tokenizer;
use crate::message::{Grid, Tower};

/// Recordings of one family of models, as its Hugging Face processor treats them.
pub struct AudioProcessor {
    front_end: FrontEnd,
    limits: AudioLimits,
    marker: Marker,
    /// Tokens before and behind a recording's placeholders.
    pub around: (String, String),
}

impl AudioProcessor {
    /// Opens the processor of the audio tower of `config`, a `config.json`, by the feature extractor's settings in the media folder;
    /// `None` for a model without such a tower.
    ///
    /// # Errors
    /// A file is missing or wrong, it disagrees with `config`, or the tower is of an unknown family.
    pub fn open(
        folders: ProcessorFolders<'_>,
        config: &Json,
        tokenizer: &Tokenizer,
        limits: &AudioLimits,
    ) -> Result<Option<Self>, DataError> {
        let card = ModelCard::of(config);
        let Some(section) = card.audio() else { return Ok(None) };
        let path = folders.model.join("config.json");
        let family = card.audio_family().ok_or_else(|| {
            DataError::file(&path, format!("audio_config of {}: its processor is not supported", config["model_type"]))
        })?;
        let id = tokenizer.special().audio;
        let placeholder = id
            .and_then(|id| tokenizer.token(id))
            .ok_or_else(|| DataError::no_token(folders.model, "audio_token_id", id))?;
        let settings = AudioSettings::read(folders.media)?;
        family.check(&settings, section).map_err(|reason| settings.wrong(reason))?;
        let known = |token: &str| tokenizer.id(token).map(|_| token.to_owned()).unwrap_or_default();
        let [start, end] = family.around().map(known);
        let marker = Marker { inline: format!("{start}{placeholder}{end}"), words: vec![placeholder] };
        let front_end = FrontEnd::new(family, family.stack(config), &settings);
        Ok(Some(Self { front_end, limits: *limits, marker, around: (start, end) }))
    }

    /// Samples a second that a recording must have.
    pub fn rate(&self) -> u32 {
        self.front_end.rate()
    }

    /// Returns the number of values of one frame.
    pub fn num_mels(&self) -> usize {
        self.front_end.num_mels()
    }

    /// Returns the limits of the run: seconds of a recording, and tokens.
    pub fn limits(&self) -> &AudioLimits {
        &self.limits
    }

    /// Returns how recordings are written in a rendered text.
    pub fn marker(&self) -> &Marker {
        &self.marker
    }

    /// Returns whether a recording of so many samples is neither too short nor too long.
    pub fn takes(&self, num_samples: usize) -> bool {
        let seconds = num_samples as f64 / f64::from(self.rate());
        let most = self.limits.max_tokens.unwrap_or(usize::MAX);
        (self.limits.min_seconds..=self.limits.max_seconds).contains(&seconds)
            && self.front_end.num_tokens(num_samples).is_ok_and(|num_tokens| num_tokens <= most)
    }

    /// Returns the frames and placeholders of a recording of [`AudioProcessor::rate`] samples a second, of which `change` masks some.
    ///
    /// # Errors
    /// The reason: it is too short or too long.
    pub fn recording(&self, samples: &[f32], change: Option<SoundChange<'_>>) -> Result<Expansion, String> {
        let seconds = samples.len() as f64 / f64::from(self.rate());
        if seconds < self.limits.min_seconds {
            return Err(format!(
                "lasts {seconds:.3} s, less than data.audio.min_seconds = {}",
                self.limits.min_seconds
            ));
        }
        let (mut frames, num_features) = self.front_end.frames(samples)?;
        if let Some(limit) = self.limits.max_tokens.filter(|limit| num_features > *limit) {
            return Err(format!("has {num_features} tokens, more than data.audio.max_tokens = {limit}"));
        }
        if let Some(change) = change {
            change.mask(&mut frames, self.front_end.num_heard(samples.len()));
        }
        let grid = Grid { t: frames.num_frames as u32, h: 1, w: 1 };
        let media = Media { tower: Tower::Audio, grid, num_features, pixels: frames.values };
        Ok(Expansion::plain(media, Run::of_sound(num_features)))
    }
}
