//! Placeholders in texts, and the files that stand for them.

use super::raw::{RawAudio, RawCut, RawPart, RawUrl, RawVideo};
use super::{MediaSource, Part};
use crate::data::audio::AudioSource;
use crate::data::error::DataError;
use crate::data::media::MediaKind;
use crate::data::source::locate::Locate;

/// Stands for a picture in a content string.
pub const IMAGE_PLACEHOLDER: &str = MediaKind::Image.placeholder();
/// Stands for a video in a content string of a line that has `videos`.
pub const VIDEO_PLACEHOLDER: &str = MediaKind::Video.placeholder();
/// Stands for a recording in a content string of a line that has `audios`.
pub const AUDIO_PLACEHOLDER: &str = MediaKind::Audio.placeholder();

/// The files that a record lists beside its messages, taken one by one.
pub(super) struct Listed<'a> {
    pub files: &'a dyn Locate,
    pub images: std::vec::IntoIter<String>,
    pub videos: std::vec::IntoIter<RawVideo>,
    pub audios: std::vec::IntoIter<RawAudio>,
    pub contexts: std::vec::IntoIter<String>,
    pub has_videos: bool,
    pub has_audios: bool,
    pub has_contexts: bool,
    pub media: Vec<MediaSource>,
}

impl Listed<'_> {
    fn image(&mut self, own: Option<String>) -> Result<Part, DataError> {
        let path = own.or_else(|| self.images.next()).ok_or_else(|| self.too_few(MediaKind::Image))?;
        self.media.push(MediaSource::Image(self.files.file(&path)?));
        Ok(Part::Image)
    }

    fn video(&mut self, own: Option<RawVideo>, fps: Option<f64>) -> Result<Part, DataError> {
        let video = own.or_else(|| self.videos.next()).ok_or_else(|| self.too_few(MediaKind::Video))?;
        self.media.push(video.source(fps, self.files)?);
        Ok(Part::Video)
    }

    fn audio(&mut self, own: Option<RawAudio>, cut: RawCut) -> Result<Part, DataError> {
        let audio = own.or_else(|| self.audios.next()).ok_or_else(|| self.too_few(MediaKind::Audio))?;
        let (path, segment) = audio.open(cut)?;
        self.media.push(MediaSource::Audio(AudioSource { locator: self.files.file(&path)?, segment }));
        Ok(Part::Audio)
    }

    fn context(&mut self) -> Result<Part, DataError> {
        let text = self.contexts.next().ok_or_else(|| self.too_few(MediaKind::Context))?;
        self.media.push(MediaSource::Context(text));
        Ok(Part::Context)
    }

    /// Returns a content string as parts.
    ///
    /// # Errors
    /// It has more placeholders than files are listed, or a file's entry is wrong.
    pub fn split(&mut self, text: &str) -> Result<Vec<Part>, DataError> {
        let mut parts = Vec::new();
        let mut rest = text;
        // Without a list of its files a word is text; a picture's never is.
        let is_one = |kind: &MediaKind| match kind {
            MediaKind::Image => true,
            MediaKind::Video => self.has_videos,
            MediaKind::Audio => self.has_audios,
            MediaKind::Context => self.has_contexts,
        };
        let known: Vec<MediaKind> = MediaKind::ALL.into_iter().filter(is_one).collect();
        loop {
            let places = known.iter().filter_map(|&kind| Some((rest.find(kind.placeholder())?, kind)));
            let next = places.min_by_key(|(at, _)| *at);
            let before = &rest[..next.map_or(rest.len(), |next| next.0)];
            if !before.is_empty() {
                parts.push(Part::Text { text: before.to_owned() });
            }
            let Some((at, kind)) = next else { return Ok(parts) };
            parts.push(match kind {
                MediaKind::Image => self.image(None)?,
                MediaKind::Video => self.video(None, None)?,
                MediaKind::Audio => self.audio(None, RawCut::default())?,
                MediaKind::Context => self.context()?,
            });
            rest = &rest[at + kind.placeholder().len()..];
        }
    }

    /// Takes a part of a message, and the file that stands for it where it is none of text.
    ///
    /// # Errors
    /// The part has no counterpart, or names a file that is not there.
    pub fn part(&mut self, part: RawPart) -> Result<Part, DataError> {
        if part.cut.cuts() && (part.r#type.starts_with("image") || part.r#type.starts_with("video")) {
            let reason =
                format!("a part of type {:?} has start, end or offset, which only recordings may have", part.r#type);
            return Err(DataError::Line(reason));
        }
        match part.r#type.as_str() {
            "text" | "input_text" | "output_text" if part.text.is_some() => {
                Ok(Part::Text { text: part.text.unwrap_or_default() })
            }
            // `…_url` beside these types is what the cards of Qwen's models have.
            "image" => self.image(part.image.or(part.image_url.map(RawUrl::url))),
            "image_url" if part.image_url.is_some() => self.image(part.image_url.map(RawUrl::url)),
            "video" => {
                let url = part.video_url.map(|url| RawVideo::One(url.url()));
                self.video(part.video.or(url), part.fps)
            }
            "video_url" if part.video_url.is_some() => {
                self.video(part.video_url.map(|url| RawVideo::One(url.url())), part.fps)
            }
            // `path` and `url` are read as a picture's.
            "audio" => {
                let file = part.image.or(part.audio_url.map(RawUrl::url)).map(RawAudio::File);
                self.audio(part.audio.or(file), part.cut)
            }
            "input_audio" if part.input_audio.is_some() => {
                self.audio(part.input_audio.map(|sound| RawAudio::File(sound.url())), part.cut)
            }
            "audio_url" if part.audio_url.is_some() => {
                self.audio(part.audio_url.map(|url| RawAudio::File(url.url())), part.cut)
            }
            // The texts themselves are listed.
            "context" => self.context(),
            other => Err(DataError::Line(format!(
                "unsupported part of type {other:?} with these fields; supported: {{\"type\":\"text\",\"text\":…}}, \
                 {{\"type\":\"image\"}}, {{\"type\":\"image_url\",\"image_url\":{{\"url\":…}}}}, \
                 {{\"type\":\"video\"}} and {{\"type\":\"audio\"}}"
            ))),
        }
    }

    /// Returns the error of a placeholder for which no file is left; where none was there at all, they may have another name.
    fn too_few(&self, kind: MediaKind) -> DataError {
        let (key, placeholder) = (kind.key(), kind.placeholder());
        let other = match self.media.iter().any(|source| source.kind() == kind) {
            true => String::new(),
            false => format!(", of which there are none; if another field names the files: columns: {{{key}: FIELD}}"),
        };
        DataError::Line(format!("the messages have more {placeholder} than `{key}` lists{other}"))
    }

    /// Returns the files, after checking that every listed one has been used.
    ///
    /// # Errors
    /// A list has more files than the messages have placeholders.
    pub fn finish(self) -> Result<Vec<MediaSource>, DataError> {
        let used = |kind: MediaKind| self.media.iter().filter(|source| source.kind() == kind).count();
        let unused = [self.images.len(), self.videos.len(), self.audios.len(), self.contexts.len()];
        for (kind, unused) in MediaKind::ALL.into_iter().zip(unused) {
            if unused > 0 {
                let (key, placeholder, used) = (kind.key(), kind.placeholder(), used(kind));
                let listed = used + unused;
                let reason = format!("`{key}` lists {listed}, but the messages have {used} {placeholder}");
                return Err(DataError::Line(reason));
            }
        }
        Ok(self.media)
    }
}
