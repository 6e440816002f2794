//! Pictures and videos of a conversation: written into its text, loaded, and put in place of their markers.

use std::path::Path;

use super::Processor;
use crate::config::TooLong;
use crate::data::decode::header_size;
use crate::data::error::DataError;
use crate::data::expand::{Expanded, Place, check, find};
use crate::data::in_process::read_rgb_with;
use crate::data::media::{self, Expansion, Kind};
use crate::data::source::{Conversation, MediaSource, Part, Turn};

impl Processor {
    /// Returns whether a turn with such a part is rendered with a marker.
    pub(super) fn template_writes(&self, part: Part) -> bool {
        let (Some(template), Some(media)) = (&self.template, &self.media) else { return true };
        let markers = media.markers();
        let text = Part::Text { text: "?".to_owned() };
        let turn = Turn::new("user", vec![part, text]);
        template.render(&[turn], false).is_ok_and(|text| find(&text, markers).len() == 1)
    }

    /// The turns with pictures and videos as text where the template knows none.
    pub(super) fn written(&self, turns: &[Turn]) -> Vec<Turn> {
        let mut turns = turns.to_vec();
        let Some(media) = &self.media else { return turns };
        for part in turns.iter_mut().flat_map(|turn| &mut turn.parts) {
            let inline = match part {
                Part::Image if !self.writes[0] => &media.markers().inline_image,
                Part::Video if !self.writes[1] => &media.markers().inline_video,
                _ => continue,
            };
            *part = Part::Text { text: inline.clone() };
        }
        turns
    }

    /// Loads pictures and videos and puts them in place of their markers: of what is to be truncated, those that a pack may
    /// hold.
    pub(super) fn expand(
        &self,
        text: &str,
        conversation: &Conversation,
        base: &Path,
        too_long: TooLong,
    ) -> Result<(Expanded, Vec<Expansion>), DataError> {
        let Some(media) = &self.media else {
            return match conversation.media.first() {
                None => Ok((Expanded::new(text, &[], &[], ""), Vec::new())),
                Some(source) => Err(takes_no(source)),
            };
        };
        if let Some(source) = conversation.media.iter().find(|source| source.kind() == Kind::Audio) {
            return Err(takes_no(source));
        }
        let places = find(text, media.markers());
        check(&places, conversation.media.iter().map(MediaSource::kind))?;
        let expansions = match too_long {
            TooLong::Skip | TooLong::Error => {
                self.check_images(text, &places, conversation, base)?;
                self.load(&conversation.media, base)?
            }
            TooLong::Truncate => self.load_fitting(&conversation.media, base)?,
        };
        Ok((Expanded::new(text, &places, &expansions, &self.placeholder), expansions))
    }

    /// Pictures and videos, in order, as the model takes them.
    pub(super) fn load(&self, sources: &[MediaSource], base: &Path) -> Result<Vec<Expansion>, DataError> {
        sources.iter().map(|source| self.load_one(source, base)).collect()
    }

    /// The first ones, as many as have no more features than a pack has tokens: many would take much memory before all but
    /// these were cut off.
    fn load_fitting(&self, sources: &[MediaSource], base: &Path) -> Result<Vec<Expansion>, DataError> {
        let (mut fitting, mut room) = (Vec::new(), self.max_tokens);
        for source in sources {
            let expansion = self.load_one(source, base)?;
            let Some(left) = room.checked_sub(expansion.num_features()) else { break };
            room = left;
            fitting.push(expansion);
        }
        Ok(fitting)
    }

    fn load_one(&self, source: &MediaSource, base: &Path) -> Result<Expansion, DataError> {
        let Some(media) = &self.media else { return Err(takes_no(source)) };
        let (named, expansion) = match source {
            MediaSource::Image(locator) => {
                (locator.display(base), media.image(&read_rgb_with(&*self.decoder, locator, base, &self.limits)?))
            }
            // Nothing of a sound may reach a decoder of pictures, whoever asks.
            MediaSource::Audio(_) => return Err(takes_no(source)),
            MediaSource::Video(video) => {
                let frames = media::load(video, base, &*self.decoder, &self.limits, media.sampling())?;
                (base.join(source.name()).display().to_string(), media.video(&frames))
            }
        };
        expansion.map_err(|reason| DataError::image(Path::new(&named), reason))
    }

    /// Many large pictures would take much memory before their sample turned out to be too long: their headers say so.
    fn check_images(
        &self,
        text: &str,
        places: &[Place],
        conversation: &Conversation,
        base: &Path,
    ) -> Result<(), DataError> {
        let Some(media) = &self.media else { return Ok(()) };
        let num_images = places.iter().filter(|place| place.kind == Kind::Image).count();
        if num_images == 0 || num_images.saturating_mul(media.max_image_features()) <= self.max_tokens {
            return Ok(());
        }
        let mut num_image_tokens = 0;
        for locator in conversation.images() {
            let (width, height) = header_size(locator, base, &self.limits)?;
            let num_features = media.num_image_features(width as usize, height as usize);
            let named = || locator.display(base);
            num_image_tokens += num_features.map_err(|reason| DataError::image(Path::new(&named()), reason))?;
        }
        let num_text_tokens = self.tokenizer.encode(text)?.len().saturating_sub(places.len());
        self.check_length(num_text_tokens, num_image_tokens)
    }
}

fn takes_no(source: &MediaSource) -> DataError {
    DataError::image(Path::new(source.name()), format!("this model takes no {}", source.kind().name()))
}
