//! A line as it is written.

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value as Json};

use super::MediaSource;
use crate::data::audio::Segment;
use crate::data::error::DataError;
use crate::data::media::VideoSource;
use crate::data::source::locate::Locate;

/// Letters of a key that is told.
const MAX_KEY: usize = 64;

#[derive(Deserialize)]
pub(super) struct RawLine {
    pub messages: Vec<RawTurn>,
    #[serde(default)]
    pub images: Option<OneOrMore<RawImage>>,
    #[serde(default)]
    pub videos: Option<OneOrMore<RawVideo>>,
    #[serde(default)]
    pub audios: Option<OneOrMore<RawAudio>>,
    #[serde(default)]
    pub contexts: Option<OneOrMore<String>>,
    pub tools: Option<Json>,
    #[serde(default)]
    pub chat_template_kwargs: Option<Json>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "images, videos, audios and contexts must be a name or a list of names")]
pub(super) enum OneOrMore<T> {
    More(Vec<T>),
    One(T),
}

/// Returns the values of a key that holds one thing, several or none.
pub(super) fn listed<T>(raw: Option<OneOrMore<T>>) -> std::vec::IntoIter<T> {
    match raw {
        None => Vec::new(),
        Some(OneOrMore::One(one)) => vec![one],
        Some(OneOrMore::More(more)) => more,
    }
    .into_iter()
}

#[derive(Deserialize)]
#[serde(expecting = "a message with a `role`")]
pub(super) struct RawTurn {
    pub role: String,
    /// The outer `None`: the key is absent; the inner one: it is `null`.
    #[serde(default, deserialize_with = "present")]
    pub content: Option<Option<RawContent>>,
    #[serde(flatten)]
    pub fields: Map<String, Json>,
}

fn present<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Option<RawContent>>, D::Error> {
    Option::deserialize(value).map(Some)
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "the content of a message must be text or a list of parts with a `type`")]
pub(super) enum RawContent {
    Text(String),
    Parts(Vec<RawPart>),
}

#[derive(Deserialize)]
pub(super) struct RawPart {
    pub r#type: String,
    pub text: Option<String>,
    #[serde(alias = "path", alias = "url")]
    pub image: Option<String>,
    pub video: Option<RawVideo>,
    pub audio: Option<RawAudio>,
    pub image_url: Option<RawUrl>,
    pub video_url: Option<RawUrl>,
    pub audio_url: Option<RawUrl>,
    pub input_audio: Option<RawSound>,
    pub fps: Option<f64>,
    #[serde(flatten)]
    pub cut: RawCut,
    /// The keys that are none of these.
    #[serde(flatten)]
    others: Map<String, Json>,
}

impl RawPart {
    /// Returns the keys that nothing reads, and those beside a URL, the beginnings of long ones.
    pub fn unread(&self) -> impl Iterator<Item = String> {
        let urls = [&self.image_url, &self.video_url, &self.audio_url].into_iter().flatten();
        let others = urls.filter_map(RawUrl::others).chain([&self.others]).flatten();
        others.filter(|(_, value)| !value.is_null()).map(|(key, _)| key.chars().take(MAX_KEY).collect::<String>())
    }
}

/// The part of a recording that is meant, in seconds.
#[derive(Clone, Copy, Default, Deserialize)]
pub(super) struct RawCut {
    start: Option<f64>,
    end: Option<f64>,
    offset: Option<f64>,
    duration: Option<f64>,
}

impl RawCut {
    /// # Errors
    /// Two keys say the same, or what they say is no segment.
    pub fn segment(self) -> Result<Segment, DataError> {
        let Self { start, end, offset, duration } = self;
        let both = |one: &str, other: &str| {
            DataError::Line(format!("a recording has both `{one}` and `{other}`: give only one of them"))
        };
        match (start, offset, end, duration) {
            (Some(_), Some(_), ..) => return Err(both("start", "offset")),
            (.., Some(_), Some(_)) => return Err(both("end", "duration")),
            _ => {}
        }
        let start = start.or(offset).unwrap_or(0.0);
        let end = end.or(duration.map(|duration| start + duration));
        Segment::new(start, end).map_err(|reason| DataError::Line(format!("recording: {reason}")))
    }

    /// Returns whether it says where something begins or ends; `duration` may be that of a whole file.
    pub fn cuts(self) -> bool {
        [self.start, self.end, self.offset].iter().any(Option::is_some)
    }

    /// Returns whether some part is meant.
    pub fn is_given(self) -> bool {
        [self.start, self.end, self.offset, self.duration].iter().any(Option::is_some)
    }
}

/// A picture: its file, alone or as `datasets` and ms-swift write it, without the bytes that may be beside it.
#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub(super) enum RawImage {
    File(String),
    Map {
        path: String,
        #[serde(default, rename = "bytes")]
        _bytes: Option<()>,
    },
}

impl RawImage {
    /// Returns the name of the file.
    pub fn path(self) -> String {
        let (Self::File(path) | Self::Map { path, .. }) = self;
        path
    }
}

/// A recording: its file, or the file and the part that is meant.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum RawAudio {
    File(String),
    Part {
        #[serde(alias = "path", alias = "audio_filepath")]
        audio: String,
        #[serde(flatten)]
        cut: RawCut,
    },
}

impl RawAudio {
    /// Returns its file and segment; `cut` is the part that is given beside it.
    ///
    /// # Errors
    /// Fails as [`RawCut::segment`] does.
    pub fn open(self, cut: RawCut) -> Result<(String, Segment), DataError> {
        match self {
            Self::File(path) => Ok((path, cut.segment()?)),
            Self::Part { audio, cut: own } => Ok((audio, if own.is_given() { own } else { cut }.segment()?)),
        }
    }
}

/// A recording within a record, as OpenAI's API has it: base64.
#[derive(Deserialize)]
pub(super) struct RawSound {
    data: String,
    format: Option<String>,
}

impl RawSound {
    /// Returns the recording as a `data:` URL.
    pub fn url(self) -> String {
        format!("data:audio/{};base64,{}", self.format.as_deref().unwrap_or("wav"), self.data)
    }
}

/// A URL as OpenAI's API has it.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum RawUrl {
    Plain(String),
    Map {
        url: String,
        #[serde(flatten)]
        others: Map<String, Json>,
    },
}

impl RawUrl {
    /// Returns the URL, be it written alone or under `url`.
    pub fn url(self) -> String {
        let (Self::Plain(url) | Self::Map { url, .. }) = self;
        url
    }

    /// Returns the keys beside `url`.
    fn others(&self) -> Option<&Map<String, Json>> {
        match self {
            Self::Plain(_) => None,
            Self::Map { others, .. } => Some(others),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum RawVideo {
    One(String),
    Frames(Vec<String>),
    Rated { video: Box<RawVideo>, fps: Option<f64> },
}

impl RawVideo {
    /// Returns the clip or its frames, found by `files`; `fps`: the frames a second of such frames, where the part says them.
    ///
    /// # Errors
    /// A file is not there, or the frames a second are no number above 0.
    pub fn source(self, fps: Option<f64>, files: &dyn Locate) -> Result<MediaSource, DataError> {
        let locators = match self {
            RawVideo::One(path) => files.video(&path)?,
            RawVideo::Frames(paths) => paths.iter().map(|path| files.file(path)).collect::<Result<_, _>>()?,
            RawVideo::Rated { video, fps: own } => return video.source(own.or(fps), files),
        };
        match fps {
            Some(fps) if !(fps.is_finite() && fps > 0.0) => {
                Err(DataError::Line(format!("the fps of a video must be a finite number above 0, found {fps}")))
            }
            _ => Ok(MediaSource::Video(VideoSource { locators, fps })),
        }
    }
}
