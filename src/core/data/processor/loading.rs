//! The files that a record names, and what the model takes of them.

use std::path::Path;
use std::sync::Arc;

use super::towers::Towers;
use crate::data::audio::{AudioProcessor, AudioSource, NO_SOUND, Samples, Segment, SoundChange, SoundChanges};
use crate::data::decoder::MediaDecoder;
use crate::data::error::DataError;
use crate::data::in_process::read_rgb_with;
use crate::data::limits::Limits;
use crate::data::locator::Locator;
use crate::data::media::{self, Expansion, VideoSource, mp4};
use crate::data::source::MediaSource;
use crate::message::{SampleId, Tower};

/// Loads files, which `decoder` decodes under these limits.
pub(super) struct MediaLoader {
    pub decoder: Arc<dyn MediaDecoder>,
    pub limits: Limits,
    /// The sound of a video is taken where the model hears it.
    pub video_sound: bool,
    /// Changes of the recordings of training samples.
    pub changes: Option<SoundChanges>,
}

impl MediaLoader {
    /// Returns how the file `at` of a sample is changed; `None` where `trained` names no sample.
    pub fn change(&self, trained: Option<SampleId>, at: usize) -> Option<SoundChange<'_>> {
        Some(self.changes.as_ref()?.draw(trained?, at))
    }

    /// Loads a file, or a text for a text tower, as the model takes it; a recording after `change`.
    ///
    /// # Errors
    /// The model takes none of its kind, or it cannot be read or decoded, or is larger than it may be.
    pub fn load_one(
        &self,
        source: &MediaSource,
        base: &Path,
        towers: &Towers,
        change: Option<SoundChange<'_>>,
    ) -> Result<Expansion, DataError> {
        match (source, &towers.vision) {
            // Nothing of a sound may reach a decoder of pictures, whoever asks.
            (MediaSource::Audio(audio), _) => {
                self.recording(audio, base, towers, change)?.ok_or_else(|| takes_no(source))
            }
            (MediaSource::Context(text), _) => match &towers.contexts {
                Some(contexts) => contexts.context(text).map_err(DataError::Line),
                None => Err(takes_no(source)),
            },
            (_, None) => Err(takes_no(source)),
            (MediaSource::Image(locator), Some(media)) => {
                let expansion = media.image(&read_rgb_with(&*self.decoder, locator, base, &self.limits)?);
                expansion.map_err(|reason| DataError::image(Path::new(&locator.display(base)), reason))
            }
            (MediaSource::Video(video), Some(media)) => {
                let frames = media::load(video, base, &*self.decoder, &self.limits, media.sampling())?;
                let named = base.join(source.name()).display().to_string();
                let seen = media.video(&frames).map_err(|reason| DataError::image(Path::new(&named), reason))?;
                match (media.clock(), self.sound_of(video, base, towers, change)?) {
                    (Some(clock), Some(heard)) => Ok(clock.with_sound(seen, heard)),
                    _ => Ok(seen),
                }
            }
        }
    }

    /// Makes a recording as the model takes it; `None` where the model hears nothing.
    fn recording(
        &self,
        source: &AudioSource,
        base: &Path,
        towers: &Towers,
        change: Option<SoundChange<'_>>,
    ) -> Result<Option<Expansion>, DataError> {
        let AudioSource { locator, segment } = source;
        let Some(audio) = &towers.audio else { return Ok(None) };
        let expansion = self.samples(&locator.read_sound(base)?, *segment, audio).and_then(|samples| {
            let samples = match change {
                Some(change) => change.at_speed(samples, audio.rate(), |len| audio.takes(len))?,
                None => samples,
            };
            self.heard(samples, audio, change).map(Some)
        });
        expansion.map_err(|reason| DataError::audio(Path::new(&locator.display(base)), reason))
    }

    fn samples(&self, bytes: &[u8], segment: Segment, audio: &AudioProcessor) -> Result<Samples, String> {
        self.decoder.sound(bytes, audio.rate(), audio.limits(), segment)
    }

    /// Returns the input that the model gets for samples, with all changes but that of the speed.
    fn heard(
        &self,
        mut samples: Samples,
        audio: &AudioProcessor,
        change: Option<SoundChange<'_>>,
    ) -> Result<Expansion, String> {
        if let Some(change) = change {
            change.add_noise(&mut samples, audio.rate(), &*self.decoder)?;
            change.amplify(&mut samples);
        }
        audio.recording(&samples, change)
    }

    /// Returns the sound of a video where it is wanted: that of an MP4 file which has any. It keeps its speed, which is that of the
    /// frames.
    fn sound_of(
        &self,
        video: &VideoSource,
        base: &Path,
        towers: &Towers,
        change: Option<SoundChange<'_>>,
    ) -> Result<Option<Expansion>, DataError> {
        let ([locator], Some(audio)) = (video.locators.as_slice(), &towers.audio) else { return Ok(None) };
        let is_folder = matches!(locator, Locator::File(name) if base.join(name).is_dir());
        if !self.video_sound || is_folder {
            return Ok(None);
        }
        let bytes = locator.read(base)?;
        let found = mp4::is_mp4(&bytes).then(|| self.samples(&bytes, Segment::WHOLE, audio));
        let heard = match found {
            None => return Ok(None),
            Some(Err(reason)) if reason == NO_SOUND => return Ok(None),
            Some(samples) => samples.and_then(|samples| self.heard(samples, audio, change)),
        };
        heard.map(Some).map_err(|reason| DataError::audio(Path::new(&locator.display(base)), reason))
    }
}

/// Returns the refusal of a file that the model has no tower for.
pub(super) fn takes_no(source: &MediaSource) -> DataError {
    let reason = format!("this model takes no {}", source.kind().name());
    match source.kind().tower() {
        Tower::Vision | Tower::Vae => DataError::image(Path::new(source.name()), reason),
        Tower::Audio => DataError::audio(Path::new(source.name()), reason),
        Tower::Text | Tower::Reference => DataError::Line(reason),
    }
}
