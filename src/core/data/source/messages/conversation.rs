//! A conversation, whatever its file looked like.

use serde::Serialize;
use serde_json::{Map, Value as Json};

use crate::data::audio::AudioSource;
use crate::data::locator::Locator;
use crate::data::media::{MediaKind, VideoSource};

/// One conversation. `media` are in the order of the image and video parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    pub turns: Vec<Turn>,
    pub media: Vec<MediaSource>,
}

/// The place of a picture, a video or a recording.
#[derive(Clone, Debug, PartialEq)]
pub enum MediaSource {
    Image(Locator),
    Video(VideoSource),
    Audio(AudioSource),
    /// A text for a text tower: itself.
    Context(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// `system`, `user`, `assistant` or `tool`; learned when `assistant`.
    pub role: String,
    pub parts: Vec<Part>,
    pub written: Written,
    /// The message's own word on the loss: `false` takes an answer out of it; `None` where the message says nothing.
    pub learn: Option<bool>,
    /// The message's other keys, as a chat template sees them: `tool_calls`, `name`, `reasoning_content`, …
    pub fields: Map<String, Json>,
    /// Keys of its parts that nothing reads, such as `detail` of a picture.
    pub unread: Vec<String>,
    /// Descriptions of functions that may be called from here on; those of all turns are the template's `tools`.
    pub tools: Vec<Json>,
    /// Variables for the chat template; the sample has those of all its turns.
    pub kwargs: Map<String, Json>,
    /// It is a system message that the record does not have, but its data set or the run gives it.
    pub is_default: bool,
}

/// The form of a message's content, which a chat template can tell apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Written {
    #[default]
    Text,
    /// A list of parts.
    Parts,
    /// `null`: a chat template sees `none`.
    Null,
    /// No content: to a chat template it is undefined.
    Absent,
}

/// A part of a turn, serialized as chat templates expect it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Part {
    Text { text: String },
    Image,
    Video,
    Audio,
    Context,
}

impl Conversation {
    /// Returns a conversation without pictures and videos.
    pub fn text(turns: Vec<Turn>) -> Self {
        Self { turns, media: Vec::new() }
    }

    /// Returns the pictures, in order.
    pub fn images(&self) -> impl Iterator<Item = &Locator> {
        self.media.iter().filter_map(|source| match source {
            MediaSource::Image(locator) => Some(locator),
            _ => None,
        })
    }
}

impl MediaSource {
    /// Returns which kind of file it is.
    pub fn kind(&self) -> MediaKind {
        match self {
            MediaSource::Image(_) => MediaKind::Image,
            MediaSource::Video(_) => MediaKind::Video,
            MediaSource::Audio(_) => MediaKind::Audio,
            MediaSource::Context(_) => MediaKind::Context,
        }
    }

    /// Returns the name of its file, or the text of a context.
    pub fn name(&self) -> &str {
        match self {
            MediaSource::Image(locator) => locator.name(),
            MediaSource::Audio(audio) => audio.locator.name(),
            MediaSource::Video(video) => video.locators.first().map_or("", Locator::name),
            MediaSource::Context(text) => text,
        }
    }
}

impl Turn {
    /// Makes a turn of these parts, without tools and other keys.
    pub fn new(role: &str, parts: Vec<Part>) -> Self {
        Self { role: role.to_owned(), parts, ..Self::default() }
    }

    /// Makes a turn of one text.
    pub fn text(role: &str, text: &str) -> Self {
        Self::new(role, vec![Part::Text { text: text.to_owned() }])
    }

    /// Puts a system message of this text before turns that have none, with the tools and variables that begin with them.
    pub fn add_system(turns: &mut Vec<Self>, text: &str) {
        if turns.iter().any(|turn| ["system", "developer"].contains(&turn.role.as_str())) {
            return;
        }
        let mut system = Self { is_default: true, ..Self::text("system", text) };
        if let Some(first) = turns.first_mut() {
            system.tools = std::mem::take(&mut first.tools);
            system.kwargs = std::mem::take(&mut first.kwargs);
        }
        turns.insert(0, system);
    }

    /// Returns the text parts in one string.
    pub fn joined_text(&self) -> String {
        self.parts.iter().map(|part| if let Part::Text { text } = part { text } else { "" }).collect()
    }

    /// Returns true where the message says nothing: no content but blanks, and no other key.
    pub fn is_empty(&self) -> bool {
        let is_empty = |value: &Json| match value {
            Json::Array(list) => list.is_empty(),
            Json::String(text) => text.trim().is_empty(),
            _ => false,
        };
        self.num_media() == 0 && self.joined_text().trim().is_empty() && self.fields.values().all(is_empty)
    }

    /// Returns the number of pictures and videos in the conversation.
    pub fn num_media(&self) -> usize {
        self.parts.iter().filter(|part| !matches!(part, Part::Text { .. })).count()
    }
}
