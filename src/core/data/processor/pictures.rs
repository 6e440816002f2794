//! Pictures, videos and recordings of a conversation: written into its text, and put in place of their markers.

use std::path::Path;

use super::Processor;
use super::loading::takes_no;
use super::room::Features;
use crate::config::TooLong;
use crate::data::decode::header_size;
use crate::data::error::DataError;
use crate::data::expand::{Expanded, MarkerSpan, check, find};
use crate::data::media::{Expansion, MediaKind};
use crate::data::source::{Conversation, MediaSource, Part, Turn};
use crate::message::SampleId;

impl Processor {
    /// Returns whether a turn with such a part is rendered with a marker.
    pub(super) fn template_writes(&self, kind: MediaKind) -> bool {
        let Some(template) = self.template.as_ref().filter(|_| self.towers.take(kind)) else { return true };
        let part = match kind {
            MediaKind::Image => Part::Image,
            MediaKind::Video => Part::Video,
            MediaKind::Audio => Part::Audio,
            MediaKind::Context => Part::Context,
        };
        let text = Part::Text { text: "?".to_owned() };
        let turn = Turn::new("user", vec![part, text]);
        template.render(&[turn]).is_ok_and(|text| find(&text, &self.towers.markers).len() == 1)
    }

    /// Returns the turns with files as text where the template knows none of their kind.
    pub(super) fn written(&self, turns: &[Turn]) -> Vec<Turn> {
        let mut turns = turns.to_vec();
        for part in turns.iter_mut().flat_map(|turn| &mut turn.parts) {
            let kind = match part {
                Part::Text { .. } => continue,
                Part::Image => MediaKind::Image,
                Part::Video => MediaKind::Video,
                Part::Audio => MediaKind::Audio,
                Part::Context => MediaKind::Context,
            };
            if !self.writes[kind as usize] {
                *part = Part::Text { text: self.towers.markers.of(kind).inline.clone() };
            }
        }
        turns
    }

    /// Loads pictures, videos and recordings and puts them in place of their markers: of what is to be truncated, those that
    /// a pack may hold. `trained` names the sample where it is trained on.
    pub(super) fn expand(
        &self,
        text: &str,
        conversation: &Conversation,
        base: &Path,
        too_long: TooLong,
        trained: Option<SampleId>,
    ) -> Result<(Expanded, Vec<Expansion>), DataError> {
        if let Some(source) = conversation.media.iter().find(|source| !self.towers.take(source.kind())) {
            return Err(takes_no(source));
        }
        let places = find(text, &self.towers.markers);
        check(&places, conversation.media.iter().map(MediaSource::kind))?;
        let expansions = match too_long {
            TooLong::Skip | TooLong::Error => {
                self.check_images(text, &places, conversation, base)?;
                self.load(&conversation.media, base, trained)?
            }
            TooLong::Truncate => self.load_fitting(&conversation.media, base, trained)?,
        };
        Ok((Expanded::new(text, &places, &expansions, |tower| self.towers.placeholder(tower)), expansions))
    }

    /// Pictures, videos and recordings, in order, as the model takes them; `trained` names the sample where it is trained on.
    pub(super) fn load(
        &self,
        sources: &[MediaSource],
        base: &Path,
        trained: Option<SampleId>,
    ) -> Result<Vec<Expansion>, DataError> {
        let mut expansions = Vec::with_capacity(sources.len());
        for (at, source) in sources.iter().enumerate() {
            // Many would take much memory before their sample turned out to be too long.
            self.room.check_length(0, Features::of(&expansions))?;
            let change = self.loader.change(trained, at);
            expansions.push(self.loader.load_one(source, base, &self.towers, change)?);
        }
        Ok(expansions)
    }

    /// Loads the first files, as many as have no more features than a pack has tokens: all of them would take much memory before all but
    /// these were cut off.
    fn load_fitting(
        &self,
        sources: &[MediaSource],
        base: &Path,
        trained: Option<SampleId>,
    ) -> Result<Vec<Expansion>, DataError> {
        let (mut fitting, mut room) = (Vec::new(), self.room.max_tokens);
        for (at, source) in sources.iter().enumerate() {
            let change = self.loader.change(trained, at);
            let expansion = self.loader.load_one(source, base, &self.towers, change)?;
            let Some(left) = room.checked_sub(expansion.num_features()) else { break };
            room = left;
            fitting.push(expansion);
        }
        Ok(fitting)
    }

    /// Checks a sample's pictures by their headers: many large ones would take much memory before their sample turned out to be too long.
    fn check_images(
        &self,
        text: &str,
        places: &[MarkerSpan],
        conversation: &Conversation,
        base: &Path,
    ) -> Result<(), DataError> {
        let Some(media) = &self.towers.vision else { return Ok(()) };
        let num_images = places.iter().filter(|place| place.kind == MediaKind::Image).count();
        if num_images == 0 || num_images.saturating_mul(media.max_image_features()) <= self.room.max_tokens {
            return Ok(());
        }
        let mut num_image_tokens = 0;
        for locator in conversation.images() {
            let (width, height) = header_size(locator, base, &self.loader.limits)?;
            let num_features = media.least_image_features(width as usize, height as usize);
            let named = || locator.display(base);
            num_image_tokens += num_features.map_err(|reason| DataError::image(Path::new(&named()), reason))?;
        }
        let num_text_tokens = self.tokenizer.encode(text)?.len().saturating_sub(places.len());
        self.room.check_length(num_text_tokens, Features { images: num_image_tokens, ..Features::default() })
    }
}
