//! A conversation, whatever its file looked like.

use serde::Serialize;
use serde_json::{Map, Value as Json};

use crate::data::locator::Locator;
use crate::data::media::{Kind, VideoSource};

/// One conversation. `media` are in the order of the image and video parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    pub turns: Vec<Turn>,
    pub media: Vec<MediaSource>,
}

/// Where a picture, a video or a recording is.
#[derive(Clone, Debug, PartialEq)]
pub enum MediaSource {
    Image(Locator),
    Video(VideoSource),
    Audio(Locator),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// `system`, `user`, `assistant` or `tool`; learnt when `assistant`.
    pub role: String,
    pub parts: Vec<Part>,
    /// The message's other keys, as a chat template sees them: `tool_calls`, `name`, `reasoning_content`, …
    pub fields: Map<String, Json>,
    /// Descriptions of functions that may be called from here on; those of all turns are the template's `tools`.
    pub tools: Vec<Json>,
}

/// A part of a turn, serialized as chat templates expect it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Part {
    Text { text: String },
    Image,
    Video,
    Audio,
}

impl Conversation {
    /// A conversation without pictures and videos.
    pub fn text(turns: Vec<Turn>) -> Self {
        Self { turns, media: Vec::new() }
    }

    /// The pictures, in order.
    pub fn images(&self) -> impl Iterator<Item = &Locator> {
        self.media.iter().filter_map(|source| match source {
            MediaSource::Image(locator) => Some(locator),
            MediaSource::Video(_) | MediaSource::Audio(_) => None,
        })
    }
}

impl MediaSource {
    pub fn kind(&self) -> Kind {
        match self {
            MediaSource::Image(_) => Kind::Image,
            MediaSource::Video(_) => Kind::Video,
            MediaSource::Audio(_) => Kind::Audio,
        }
    }

    /// What it is named by.
    pub fn name(&self) -> &str {
        match self {
            MediaSource::Image(locator) | MediaSource::Audio(locator) => locator.name(),
            MediaSource::Video(video) => video.locators.first().map_or("", Locator::name),
        }
    }
}

impl Turn {
    pub fn new(role: &str, parts: Vec<Part>) -> Self {
        Self { role: role.to_owned(), parts, ..Self::default() }
    }

    pub fn text(role: &str, text: &str) -> Self {
        Self::new(role, vec![Part::Text { text: text.to_owned() }])
    }

    /// The text parts in one string.
    pub fn joined_text(&self) -> String {
        self.parts.iter().map(|part| if let Part::Text { text } = part { text } else { "" }).collect()
    }

    /// Pictures and videos in it.
    pub fn num_media(&self) -> usize {
        self.parts.iter().filter(|part| !matches!(part, Part::Text { .. })).count()
    }
}
