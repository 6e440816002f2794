//! The `messages` format: one conversation a line, as Hugging Face's chat data and LLaMA-Factory write it.
//!
//! ```json
//! {"messages": [{"role": "user", "content": "<image>Read the number."},
//!               {"role": "assistant", "content": "4071"}], "images": ["img/000001.png"]}
//! ```
//!
//! Content is a string, in which `<image>` stands for the next of `images` and, where the line has `videos`, `<video>`
//! for the next of them; or a list of parts `{"type": "text", "text": …}`, `{"type": "image", "image": …}` and
//! `{"type": "video", "video": …, "fps": …}`. A video is a folder of pictures, a list of pictures, an animated GIF or an MP4 file;
//! `fps` is the rate of those pictures.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::locate::{AsNamed, Locate};
use crate::data::error::DataError;
use crate::data::locator::Locator;
use crate::data::media::{Kind, VideoSource};

/// Stands for a picture in a content string.
pub const IMAGE_PLACEHOLDER: &str = "<image>";
/// Stands for a video in a content string of a line that has `videos`.
pub const VIDEO_PLACEHOLDER: &str = "<video>";
/// Stands for a recording in a content string of a line that has `audios`.
pub const AUDIO_PLACEHOLDER: &str = "<audio>";

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
    images: Option<OneOrMore<String>>,
    #[serde(default)]
    videos: Option<OneOrMore<RawVideo>>,
    #[serde(default)]
    audios: Option<OneOrMore<String>>,
    tools: Option<Json>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore<T> {
    More(Vec<T>),
    One(T),
}

fn listed<T>(raw: Option<OneOrMore<T>>) -> std::vec::IntoIter<T> {
    match raw {
        None => Vec::new(),
        Some(OneOrMore::One(one)) => vec![one],
        Some(OneOrMore::More(more)) => more,
    }
    .into_iter()
}

#[derive(Deserialize)]
struct RawTurn {
    role: String,
    #[serde(default)]
    content: Option<RawContent>,
    #[serde(flatten)]
    fields: Map<String, Json>,
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
    audio: Option<String>,
    image_url: Option<RawUrl>,
    video_url: Option<RawUrl>,
    audio_url: Option<RawUrl>,
    fps: Option<f64>,
}

/// As OpenAI's API has it.
#[derive(Deserialize)]
#[serde(untagged)]
enum RawUrl {
    Plain(String),
    Map { url: String },
}

impl RawUrl {
    fn url(self) -> String {
        let (Self::Plain(url) | Self::Map { url }) = self;
        url
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawVideo {
    One(String),
    Frames(Vec<String>),
    Rated { video: Box<RawVideo>, fps: Option<f64> },
}

impl RawVideo {
    fn source(self, fps: Option<f64>, files: &dyn Locate) -> Result<MediaSource, DataError> {
        let locators = match self {
            RawVideo::One(path) => files.video(&path)?,
            RawVideo::Frames(paths) => paths.iter().map(|path| files.file(path)).collect::<Result<_, _>>()?,
            RawVideo::Rated { video, fps: own } => return video.source(own.or(fps), files),
        };
        match fps {
            Some(fps) if !(fps.is_finite() && fps > 0.0) => Err(DataError::Line(format!("a video's fps is {fps}"))),
            _ => Ok(MediaSource::Video(VideoSource { locators, fps })),
        }
    }
}

/// The files that a record lists beside its messages, taken one by one.
struct Listed<'a> {
    files: &'a dyn Locate,
    images: std::vec::IntoIter<String>,
    videos: std::vec::IntoIter<RawVideo>,
    audios: std::vec::IntoIter<String>,
    has_videos: bool,
    has_audios: bool,
    media: Vec<MediaSource>,
}

impl Listed<'_> {
    fn image(&mut self, own: Option<String>) -> Result<Part, DataError> {
        let path = own.or_else(|| self.images.next()).ok_or_else(|| too_few(IMAGE_PLACEHOLDER, "images"))?;
        self.media.push(MediaSource::Image(self.files.file(&path)?));
        Ok(Part::Image)
    }

    fn video(&mut self, own: Option<RawVideo>, fps: Option<f64>) -> Result<Part, DataError> {
        let video = own.or_else(|| self.videos.next()).ok_or_else(|| too_few(VIDEO_PLACEHOLDER, "videos"))?;
        self.media.push(video.source(fps, self.files)?);
        Ok(Part::Video)
    }

    fn audio(&mut self, own: Option<String>) -> Result<Part, DataError> {
        let path = own.or_else(|| self.audios.next()).ok_or_else(|| too_few(AUDIO_PLACEHOLDER, "audios"))?;
        self.media.push(MediaSource::Audio(self.files.file(&path)?));
        Ok(Part::Audio)
    }

    /// A content string as parts.
    fn split(&mut self, text: &str) -> Result<Vec<Part>, DataError> {
        let mut parts = Vec::new();
        let mut rest = text;
        let known = [
            (IMAGE_PLACEHOLDER, Kind::Image, true),
            (VIDEO_PLACEHOLDER, Kind::Video, self.has_videos),
            (AUDIO_PLACEHOLDER, Kind::Audio, self.has_audios),
        ];
        loop {
            let places = known.iter().filter(|(_, _, is_one)| *is_one);
            let next =
                places.filter_map(|&(word, kind, _)| Some((rest.find(word)?, word, kind))).min_by_key(|next| next.0);
            let before = &rest[..next.map_or(rest.len(), |next| next.0)];
            if !before.is_empty() {
                parts.push(Part::Text { text: before.to_owned() });
            }
            let Some((at, word, kind)) = next else { return Ok(parts) };
            parts.push(match kind {
                Kind::Image => self.image(None)?,
                Kind::Video => self.video(None, None)?,
                Kind::Audio => self.audio(None)?,
            });
            rest = &rest[at + word.len()..];
        }
    }

    fn part(&mut self, part: RawPart) -> Result<Part, DataError> {
        match part.r#type.as_str() {
            "text" | "input_text" | "output_text" if part.text.is_some() => {
                Ok(Part::Text { text: part.text.unwrap_or_default() })
            }
            "image" => self.image(part.image),
            "image_url" if part.image_url.is_some() => self.image(part.image_url.map(RawUrl::url)),
            "video" => self.video(part.video, part.fps),
            "video_url" if part.video_url.is_some() => {
                self.video(part.video_url.map(|url| RawVideo::One(url.url())), part.fps)
            }
            "audio" => self.audio(part.audio),
            "audio_url" if part.audio_url.is_some() => self.audio(part.audio_url.map(RawUrl::url)),
            other => Err(DataError::Line(format!(
                "a part of type {other:?} with these fields; known: {{\"type\":\"text\",\"text\":…}}, \
                 {{\"type\":\"image\"}}, {{\"type\":\"image_url\",\"image_url\":{{\"url\":…}}}}, {{\"type\":\"video\"}} and \
                 {{\"type\":\"audio\"}}"
            ))),
        }
    }

    /// Nothing that is listed may be left.
    fn finish(self) -> Result<Vec<MediaSource>, DataError> {
        let used = |kind: Kind| self.media.iter().filter(|source| source.kind() == kind).count();
        for (key, placeholder, unused, used) in [
            ("images", IMAGE_PLACEHOLDER, self.images.len(), used(Kind::Image)),
            ("videos", VIDEO_PLACEHOLDER, self.videos.len(), used(Kind::Video)),
            ("audios", AUDIO_PLACEHOLDER, self.audios.len(), used(Kind::Audio)),
        ] {
            if unused > 0 {
                let listed = used + unused;
                let reason = format!("`{key}` lists {listed} but the messages hold {used} {placeholder}");
                return Err(DataError::Line(reason));
            }
        }
        Ok(self.media)
    }
}

impl Conversation {
    /// One line of the file. The error says what is wrong with it.
    pub fn parse(line: &str) -> Result<Self, DataError> {
        let json = serde_json::from_str(line).map_err(|error| DataError::Line(error.to_string()))?;
        Self::from_json(json, &AsNamed)
    }

    /// One record, whose files `files` finds.
    pub(super) fn from_json(record: Json, files: &dyn Locate) -> Result<Self, DataError> {
        let raw: RawLine = serde_json::from_value(record).map_err(|error| DataError::Line(error.to_string()))?;
        let (images, videos, audios) = (listed(raw.images), listed(raw.videos), listed(raw.audios));
        let (has_videos, has_audios) = (videos.len() > 0, audios.len() > 0);
        let mut listed = Listed { files, images, videos, audios, has_videos, has_audios, media: Vec::new() };
        let mut turns = Vec::with_capacity(raw.messages.len());
        for turn in raw.messages {
            let parts = match turn.content {
                None => Vec::new(),
                Some(RawContent::Text(text)) => listed.split(&text)?,
                Some(RawContent::Parts(parts)) => {
                    parts.into_iter().map(|part| listed.part(part)).collect::<Result<_, _>>()?
                }
            };
            let mut fields: Map<String, Json> = turn.fields.into_iter().filter(|(_, value)| !value.is_null()).collect();
            if let Some(calls) = fields.get_mut("tool_calls") {
                read_arguments(calls);
            }
            turns.push(Turn { fields, ..Turn::new(&turn.role, parts) });
        }
        let media = listed.finish()?;
        let Some(first) = turns.first_mut() else {
            return Err(DataError::Line("`messages` is empty".to_owned()));
        };
        first.tools = tools(raw.tools)?;
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

/// Descriptions of functions: a list, or its JSON text, as ShareGPT files have it.
fn tools(raw: Option<Json>) -> Result<Vec<Json>, DataError> {
    let value = match raw {
        Some(Json::String(text)) if text.trim().is_empty() => Json::Null,
        Some(Json::String(text)) => {
            serde_json::from_str(&text).map_err(|error| DataError::Line(format!("`tools` is no JSON: {error}")))?
        }
        other => other.unwrap_or_default(),
    };
    match value {
        Json::Null => Ok(Vec::new()),
        Json::Array(tools) => Ok(tools),
        one @ Json::Object(_) => Ok(vec![one]),
        _ => Err(DataError::Line("`tools` is no list of functions".to_owned())),
    }
}

/// OpenAI's arguments are JSON as text; templates expect the object, as transformers' users give it.
fn read_arguments(calls: &mut Json) {
    for call in calls.as_array_mut().into_iter().flatten() {
        let has_function = call["function"].is_object();
        let call = if has_function { &mut call["function"] } else { call };
        if let Some(Json::String(text)) = call.get("arguments")
            && let Ok(arguments @ Json::Object(_)) = serde_json::from_str(text)
        {
            call["arguments"] = arguments;
        }
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
    fn calls_and_tools_are_kept_for_the_template() {
        let line = r#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,aGk="}},
            {"type":"text","text":"x","image":null},{"type":"audio","audio":"a.wav"}],"name":null},
            {"role":"assistant","content":null,"tool_calls":[{"type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}]},
            {"role":"tool","content":"2","tool_call_id":"c"}],"tools":"[{\"name\": \"f\"}]","images":null}"#;
        let conversation = Conversation::parse(line).unwrap();
        let [user, assistant, tool] = &conversation.turns[..] else { panic!("three turns") };
        assert_eq!((user.tools.len(), user.fields.len(), user.num_media()), (1, 0, 2));
        assert_eq!(assistant.fields["tool_calls"][0]["function"]["arguments"]["a"], 1);
        assert!(assistant.parts.is_empty() && tool.fields["tool_call_id"] == "c");
        assert_eq!(conversation.media[0], MediaSource::Image(Locator::bytes("data.png", *b"hi")));
        assert_eq!(conversation.media[1], MediaSource::Audio("a.wav".into()));
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
            (r#"{"messages":[{"role":"user","content":[{"type":"audio"}]}]}"#, "more <audio>"),
            (r#"{"messages":[{"role":"user","content":[{"type":"text"}]}]}"#, "of type \"text\""),
            (r#"{"messages":[{"role":"user","content":"x"}],"tools":"["}"#, "`tools`"),
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
