//! Turns the files of samples into items of a model's towers.

use serde_json::Value as Json;

use super::{ProcessorFolders, ProcessorOptions};
use crate::data::audio::AudioProcessor;
use crate::data::contexts::ContextProcessor;
use crate::data::error::DataError;
use crate::data::media::{self, Markers, MediaKind, MediaProcessor, Run};
use crate::data::tokenizer::{Token, Tokenizer};
use crate::message::Tower;

/// The towers of a model, its placeholders and its markers; none for a text model.
pub struct Towers {
    pub vision: Option<Box<dyn MediaProcessor>>,
    pub audio: Option<AudioProcessor>,
    pub contexts: Option<ContextProcessor>,
    pub markers: Markers,
    /// The token that features of a tower replace, as id and as text.
    placeholders: Vec<(Tower, i64, String)>,
}

impl Towers {
    /// # Errors
    /// A preprocessor config is missing, wrong or of another model.
    pub fn open(
        folders: ProcessorFolders<'_>,
        config: &Json,
        tokenizer: &Tokenizer,
        options: &ProcessorOptions,
    ) -> Result<Self, DataError> {
        let vision = media::open(folders, config, tokenizer, (&options.image, &options.video))?;
        let audio = AudioProcessor::open(folders, config, tokenizer, &options.audio)?;
        let mut markers = vision.as_ref().map(|vision| vision.markers().clone()).unwrap_or_default();
        if let Some(audio) = &audio {
            markers = markers.with(MediaKind::Audio, audio.marker().clone());
        }
        let contexts = ContextProcessor::open(folders, config, tokenizer)?;
        if let Some(contexts) = &contexts {
            markers = markers.with(MediaKind::Context, contexts.marker().clone());
        }
        let special = tokenizer.special();
        let ids = [
            (Tower::Vision, special.image.filter(|_| vision.is_some())),
            (Tower::Audio, special.audio.filter(|_| audio.is_some())),
            (Tower::Text, special.context.filter(|_| contexts.is_some())),
        ];
        let placeholder = |(tower, id): (Tower, Option<i64>)| Some((tower, id?, tokenizer.token(id?)?));
        let placeholders = ids.into_iter().filter_map(placeholder).collect();
        Ok(Self { vision, audio, contexts, markers, placeholders })
    }

    /// Returns whether the model takes files of this kind.
    pub fn take(&self, kind: MediaKind) -> bool {
        !self.markers.of(kind).words.is_empty()
    }

    /// Returns the tower whose placeholder a token is.
    pub fn of(&self, token: i64) -> Option<Tower> {
        self.placeholders.iter().find(|(_, id, _)| *id == token).map(|(tower, ..)| *tower)
    }

    /// Returns the placeholder of a tower as text; empty where the model has no such tower.
    pub fn placeholder(&self, tower: Tower) -> &str {
        self.placeholders.iter().find(|(other, ..)| *other == tower).map_or("", |(_, _, text)| text)
    }

    /// # Errors
    /// The placeholders among the tokens are not those of the runs, in their order: a text forged one, or the tokenizer
    /// lost one.
    pub fn check_placeholders(&self, tokens: &[Token], runs: &[Run]) -> Result<(), DataError> {
        let made = tokens.iter().filter_map(|token| self.of(token.id));
        if made.clone().eq(runs.iter().map(|run| run.tower)) {
            return Ok(());
        }
        let what = match (&self.audio, &self.contexts) {
            (_, Some(_)) => "pictures, videos, audio and contexts",
            (Some(_), None) => "pictures, videos and audio",
            (None, None) => "pictures and videos",
        };
        let (made, expected) = (made.count(), runs.len());
        Err(DataError::Line(match made == expected {
            true => format!("the placeholder tokens of the text are not in the order of its {what}"),
            false => format!("the text has {made} placeholder tokens, but its {what} need {expected}"),
        }))
    }
}
