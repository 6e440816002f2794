//! The `messages` format: one conversation a line, as Hugging Face's chat data and LLaMA-Factory write it.
//!
//! ```json
//! {"messages": [{"role": "user", "content": "<image>Read the number."},
//!               {"role": "assistant", "content": "4071"}], "images": ["img/000001.png"]}
//! ```
//!
//! Content is a string, in which `<image>` stands for the next of `images` and, where the line has `videos`, `<video>`
//! for the next of them; or a list of parts `{"type": "text", "text": …}`, `{"type": "image", "image": …}` and
//! `{"type": "video", "video": …, "fps": …}`. A video is a folder of pictures, a list of pictures or an animated GIF;
//! `fps` is the rate of those pictures.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::error::DataError;
use super::locator::Locator;
use super::media::{Kind, VideoSource};

/// Stands for a picture in a content string.
pub const IMAGE_PLACEHOLDER: &str = "<image>";
/// Stands for a video in a content string of a line that has `videos`.
pub const VIDEO_PLACEHOLDER: &str = "<video>";

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

#[derive(Deserialize)]
struct RawLine {
    messages: Vec<RawTurn>,
    #[serde(default)]
    images: Vec<String>,
    #[serde(default)]
    videos: Vec<RawVideo>,
}

#[derive(Deserialize)]
struct RawTurn {
    role: String,
    content: RawContent,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawContent {
    Text(String),
    Parts(Vec<RawPart>),
}

#[derive(Deserialize)]
struct RawPart {
    r#type: String,
    text: Option<String>,
    #[serde(alias = "path", alias = "url")]
    image: Option<String>,
    video: Option<RawVideo>,
    fps: Option<f64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawVideo {
    One(String),
    Frames(Vec<String>),
    Rated { video: Box<RawVideo>, fps: Option<f64> },
}

impl RawVideo {
    fn source(self, fps: Option<f64>) -> Result<MediaSource, DataError> {
        let paths = match self {
            RawVideo::One(path) => vec![path],
            RawVideo::Frames(paths) => paths,
            RawVideo::Rated { video, fps: own } => return video.source(own.or(fps)),
        };
        match fps {
            Some(fps) if !(fps.is_finite() && fps > 0.0) => Err(DataError::Line(format!("a video's fps is {fps}"))),
            _ => {
                let locators = paths.iter().map(|path| Locator::parse(path)).collect::<Result<_, _>>()?;
                Ok(MediaSource::Video(VideoSource { locators, fps }))
            }
        }
    }
}

/// The files that a line lists beside its messages, taken one by one.
struct Listed {
    images: std::vec::IntoIter<String>,
    videos: std::vec::IntoIter<RawVideo>,
    has_videos: bool,
    media: Vec<MediaSource>,
}

impl Listed {
    fn image(&mut self, own: Option<String>) -> Result<Part, DataError> {
        let path = own.or_else(|| self.images.next()).ok_or_else(|| too_few(IMAGE_PLACEHOLDER, "images"))?;
        self.media.push(MediaSource::Image(Locator::parse(&path)?));
        Ok(Part::Image)
    }

    fn video(&mut self, own: Option<RawVideo>, fps: Option<f64>) -> Result<Part, DataError> {
        let video = own.or_else(|| self.videos.next()).ok_or_else(|| too_few(VIDEO_PLACEHOLDER, "videos"))?;
        self.media.push(video.source(fps)?);
        Ok(Part::Video)
    }

    /// A content string as parts.
    fn split(&mut self, text: &str) -> Result<Vec<Part>, DataError> {
        let mut parts = Vec::new();
        let mut rest = text;
        loop {
            let image = rest.find(IMAGE_PLACEHOLDER).map(|at| (at, Kind::Image));
            let video = rest.find(VIDEO_PLACEHOLDER).filter(|_| self.has_videos).map(|at| (at, Kind::Video));
            let next = [image, video].into_iter().flatten().min_by_key(|(at, _)| *at);
            let (before, after) = match next {
                Some((at, _)) => (&rest[..at], &rest[at..]),
                None => (rest, ""),
            };
            if !before.is_empty() {
                parts.push(Part::Text { text: before.to_owned() });
            }
            match next {
                Some((_, Kind::Image)) => {
                    parts.push(self.image(None)?);
                    rest = &after[IMAGE_PLACEHOLDER.len()..];
                }
                Some(_) => {
                    parts.push(self.video(None, None)?);
                    rest = &after[VIDEO_PLACEHOLDER.len()..];
                }
                None => return Ok(parts),
            }
        }
    }
}

impl Conversation {
    /// One line of the file. The error says what is wrong with it.
    pub fn parse(line: &str) -> Result<Self, DataError> {
        let raw: RawLine = serde_json::from_str(line).map_err(|error| DataError::Line(error.to_string()))?;
        let mut listed = Listed {
            has_videos: !raw.videos.is_empty(),
            images: raw.images.into_iter(),
            videos: raw.videos.into_iter(),
            media: Vec::new(),
        };
        let mut turns = Vec::with_capacity(raw.messages.len());
        for turn in raw.messages {
            let parts = match turn.content {
                RawContent::Text(text) => listed.split(&text)?,
                RawContent::Parts(raw_parts) => {
                    raw_parts.into_iter().map(|part| parse_part(part, &mut listed)).collect::<Result<_, _>>()?
                }
            };
            turns.push(Turn::new(&turn.role, parts));
        }
        let Listed { images, videos, media, .. } = listed;
        let is_image = |source: &&MediaSource| matches!(source, MediaSource::Image(_));
        let num_images = media.iter().filter(is_image).count();
        for (key, placeholder, unused, used) in [
            ("images", IMAGE_PLACEHOLDER, images.len(), num_images),
            ("videos", VIDEO_PLACEHOLDER, videos.len(), media.len() - num_images),
        ] {
            if unused > 0 {
                let listed = used + unused;
                let reason = format!("`{key}` lists {listed} but the messages hold {used} {placeholder}");
                return Err(DataError::Line(reason));
            }
        }
        if turns.is_empty() {
            return Err(DataError::Line("`messages` is empty".to_owned()));
        }
        Ok(Self { turns, media })
    }

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

fn parse_part(part: RawPart, listed: &mut Listed) -> Result<Part, DataError> {
    match (part.r#type.as_str(), part.text, part.image, part.video) {
        ("text", Some(text), None, None) => Ok(Part::Text { text }),
        ("image", None, own, None) => listed.image(own),
        ("video", None, None, own) => listed.video(own, part.fps),
        (other, ..) => Err(DataError::Line(format!(
            "a part of type {other:?} with these fields; known: {{\"type\":\"text\",\"text\":…}}, \
             {{\"type\":\"image\"}} and {{\"type\":\"video\"}}"
        ))),
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

fn too_few(placeholder: &str, key: &str) -> DataError {
    DataError::Line(format!("more {placeholder} in the messages than files in `{key}`"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn strings_and_parts_mean_the_same() {
        let string = r#"{"messages":[{"role":"user","content":"<image>Read<video>it."},{"role":"assistant","content":"1"}],
            "images":["a.png"],"videos":[{"video":["1.png","2.png"],"fps":4}]}"#;
        let parts = r#"{"messages":[{"role":"user","content":[{"type":"image"},{"type":"text","text":"Read"},
            {"type":"video","video":["1.png","2.png"],"fps":4},{"type":"text","text":"it."}]},
            {"role":"assistant","content":[{"type":"text","text":"1"}]}],"images":["a.png"]}"#;
        let conversation = Conversation::parse(string).unwrap();
        assert_eq!(conversation, Conversation::parse(parts).unwrap());
        assert_eq!(conversation.images().collect::<Vec<_>>(), [&Locator::from("a.png")]);
        assert_eq!((conversation.turns[0].joined_text().as_str(), conversation.turns[0].num_media()), ("Readit.", 2));
        let MediaSource::Video(video) = &conversation.media[1] else { panic!("a video") };
        assert_eq!((video.locators.len(), video.fps), (2, Some(4.0)));
        // Without videos `<video>` is text.
        let html = r#"{"messages":[{"role":"user","content":"<video> is a tag"}]}"#;
        assert_eq!(Conversation::parse(html).unwrap().turns[0].joined_text(), "<video> is a tag");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (line, part) in [
            ("", "EOF"),
            ("[1]", "invalid"),
            (r#"{"messages":[]}"#, "empty"),
            (r#"{"images":[]}"#, "messages"),
            (r#"{"messages":[{"role":"user","content":"<image>"}]}"#, "more <image>"),
            (r#"{"messages":[{"role":"user","content":"x"}],"images":["a","b"]}"#, "lists 2 but the messages hold 0"),
            (r#"{"messages":[{"role":"user","content":"<video><video>"}],"videos":["a"]}"#, "more <video>"),
            (r#"{"messages":[{"role":"user","content":[{"type":"audio"}]}]}"#, "\"audio\""),
            (r#"{"messages":[{"role":"user","content":[{"type":"video","video":"a","fps":0}]}]}"#, "fps is 0"),
        ] {
            let error = Conversation::parse(line).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_line_panics(line in "\\PC{0,60}", cut in 0usize..120) {
            let _ = Conversation::parse(&line);
            let good = r#"{"messages":[{"role":"user","content":"<image>Read"},{"role":"assistant","content":"é"}],"images":["a.png"]}"#;
            if good.is_char_boundary(cut.min(good.len())) {
                let _ = Conversation::parse(&format!("{}{line}", &good[..cut.min(good.len())]));
            }
        }
    }
}
