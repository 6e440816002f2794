//! A sample as members of a WebDataset shard, in the layout of Megatron-Energon's crude samples that LoongForge's cookers
//! read: `KEY.json` with `texts`, `media` and `name`, and every file under its own member.
//!
//! ```json
//! {"texts": [{"role": "user", "content": "<image>Read it."}, …], "media": "image", "name": ["0_a.png"],
//!  "images": ["0_a.png"]}
//! ```
//!
//! `images`, `videos` and `audios` say the same by kind, as the `messages` format does; a video of frames is
//! `{"video": [names], "fps": rate}`.

use std::path::Path;

use serde_json::{Map, Value as Json, json};

use super::shard::{Member, member_name};
use super::sound;
use crate::data::audio::AudioSource;
use crate::data::decode::header_size;
use crate::data::decoder::MediaDecoder;
use crate::data::error::DataError;
use crate::data::limits::Limits;
use crate::data::locator::Locator;
use crate::data::media::{MediaKind, Sampling, in_folder, is_clip};
use crate::data::source::Content;
use crate::data::source::{Conversation, IMAGE_PLACEHOLDER, MediaSource, Part, Turn, VIDEO_PLACEHOLDER, Written};

/// Says how closely pictures are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Kind and size in the header.
    Header,
    /// Every pixel is decoded.
    Whole,
}

/// A longer side is refused, here and in training.
pub const LIMITS: &Limits = &Limits { max_side: 16384, max_pixels: 1 << 26 };

/// Returns the members of a sample.
///
/// # Errors
/// A file is missing or is no picture.
pub fn members(
    content: &Content,
    base: &Path,
    look: Look,
    decoder: &dyn MediaDecoder,
) -> Result<Vec<Member>, DataError> {
    match content {
        Content::Messages(conversation) => {
            of_conversation(conversation, Files { base, look, decoder, members: Vec::new() })
        }
        Content::Labeled(_) | Content::Group(_) => Err(DataError::Line(
            "is an answer with a label, which shards cannot hold: keep such records as JSON or Parquet".to_owned(),
        )),
        Content::Pair(_) => Err(DataError::Line(
            "is a pair of answers, which shards cannot hold: keep such records as JSON or Parquet".to_owned(),
        )),
        Content::Text(piece) => Ok(vec![json_member(&json!({ "text": piece.text, "media": "text" }))]),
        Content::Tokens(_) => Err(DataError::Line(
            "has tokens without their text, which shards cannot hold: make packs of them with `data pack`".to_owned(),
        )),
        Content::Step(_) => Err(DataError::Line(
            "is a frame of an episode, which shards of other samples cannot hold; `data convert` writes whole sets"
                .to_owned(),
        )),
        #[allow(unreachable_patterns)]
        _ => Err(DataError::Line("is packed: there is nothing to convert".to_owned())),
    }
}

fn json_member(value: &Json) -> Member {
    ("json".to_owned(), value.to_string().into_bytes().into())
}

fn of_conversation(conversation: &Conversation, mut files: Files<'_>) -> Result<Vec<Member>, DataError> {
    let (mut names, mut by_kind, mut contexts) = (Vec::new(), [const { Vec::<Json>::new() }; 3], Vec::<Json>::new());
    for (index, source) in conversation.media.iter().enumerate() {
        let (kind, named) = match source {
            MediaSource::Image(locator) => (0, files.add(index, None, locator, files.base)?),
            MediaSource::Video(video) => (1, files.video(index, &video.locators, video.fps)?),
            MediaSource::Audio(audio) => (2, files.sound(index, audio)?),
            MediaSource::Context(text) => {
                contexts.push(text.as_str().into());
                continue;
            }
        };
        names.push(if kind == 2 {
            named.get("audio").cloned().unwrap_or_else(|| named.clone())
        } else {
            named.clone()
        });
        by_kind[kind].push(named);
    }
    let [images, videos, audios] = by_kind;
    let media = match (images.is_empty(), videos.is_empty(), audios.is_empty()) {
        (true, true, true) => "text",
        (false, true, true) => "image",
        (true, false, true) => "video",
        (true, true, false) => "audio",
        _ => "mix",
    };
    let [has_videos, has_audios] = [&videos, &audios].map(|listed| !listed.is_empty());
    let mut record = Map::new();
    let texts = conversation.turns.iter().map(|turn| message(turn, has_videos, has_audios)).collect();
    record.insert("texts".to_owned(), Json::Array(texts));
    record.insert("media".to_owned(), media.into());
    if !names.is_empty() {
        record.insert("name".to_owned(), Json::Array(names));
    }
    for (key, names) in [("images", images), ("videos", videos), ("audios", audios), ("contexts", contexts)] {
        if !names.is_empty() {
            record.insert(key.to_owned(), Json::Array(names));
        }
    }
    let tools: Vec<Json> = conversation.turns.iter().flat_map(|turn| turn.tools.iter().cloned()).collect();
    if !tools.is_empty() {
        record.insert("tools".to_owned(), Json::Array(tools));
    }
    let kwargs: Map<String, Json> = conversation.turns.iter().flat_map(|turn| turn.kwargs.clone()).collect();
    if !kwargs.is_empty() {
        record.insert("chat_template_kwargs".to_owned(), Json::Object(kwargs));
    }
    let mut members = vec![json_member(&Json::Object(record))];
    members.extend(files.members);
    Ok(members)
}

/// Returns a turn: its content as a string with placeholders, or as parts where a text could be taken for a placeholder.
fn message(turn: &Turn, has_videos: bool, has_audios: bool) -> Json {
    let holds = |word: &str| turn.parts.iter().any(|part| matches!(part, Part::Text { text } if text.contains(word)));
    let ambiguous = turn.written == Written::Parts
        || holds(IMAGE_PLACEHOLDER)
        || has_videos && holds(VIDEO_PLACEHOLDER)
        || has_audios && holds(MediaKind::Audio.placeholder())
        || holds(MediaKind::Context.placeholder())
        || turn.parts.iter().any(|part| matches!(part, Part::Audio | Part::Context));
    let content = match ambiguous {
        true => serde_json::to_value(&turn.parts).unwrap_or_default(),
        false => turn
            .parts
            .iter()
            .map(|part| match part {
                Part::Text { text } => text.as_str(),
                Part::Image => IMAGE_PLACEHOLDER,
                Part::Video => VIDEO_PLACEHOLDER,
                Part::Audio | Part::Context => "",
            })
            .collect::<String>()
            .into(),
    };
    let mut message = Map::new();
    message.insert("role".to_owned(), turn.role.clone().into());
    match turn.written {
        Written::Absent => {}
        Written::Null => drop(message.insert("content".to_owned(), Json::Null)),
        Written::Text | Written::Parts => drop(message.insert("content".to_owned(), content)),
    }
    message.extend(turn.fields.clone());
    message.extend(turn.learn.map(|learn| ("train".to_owned(), learn.into())));
    Json::Object(message)
}

struct Files<'a> {
    base: &'a Path,
    look: Look,
    decoder: &'a dyn MediaDecoder,
    members: Vec<Member>,
}

impl Files<'_> {
    /// Adds a picture.
    fn add(&mut self, index: usize, frame: Option<usize>, locator: &Locator, base: &Path) -> Result<Json, DataError> {
        let wrong = |reason: String| DataError::image(Path::new(&locator.display(base)), reason);
        let bytes = locator.read(base)?.into_owned();
        match self.look {
            Look::Whole => drop(self.decoder.picture(&bytes, LIMITS).map_err(wrong)?),
            Look::Header => {
                // Of the bytes that are written, not of a file that may change.
                let bytes = Locator::bytes(locator.display(base), bytes.clone());
                header_size(&bytes, Path::new(""), LIMITS)?;
            }
        }
        Ok(self.push(member_name(index, frame, locator.name()), bytes))
    }

    fn push(&mut self, name: String, bytes: Vec<u8>) -> Json {
        self.members.push((name.clone(), bytes.into()));
        name.into()
    }

    /// Adds a recording: the whole file, and which part of it is meant.
    fn sound(&mut self, index: usize, audio: &AudioSource) -> Result<Json, DataError> {
        let AudioSource { locator, segment } = audio;
        let bytes = locator.read_sound(self.base)?.into_owned();
        // Of the bytes that are written, not of a file that may change.
        let locator_of_bytes = Locator::bytes(locator.display(self.base), bytes.clone());
        let read = AudioSource { locator: locator_of_bytes, segment: *segment };
        match self.look {
            Look::Whole => drop(sound::decode(&read, Path::new(""), self.decoder)?),
            Look::Header => drop(sound::header(&read.locator, Path::new(""))?),
        }
        let name = self.push(member_name(index, None, locator.name()), bytes);
        Ok(match (segment.is_whole(), segment.end) {
            (true, _) => name,
            (false, None) => json!({ "audio": name, "start": segment.start }),
            (false, Some(end)) => json!({ "audio": name, "start": segment.start, "end": end }),
        })
    }

    /// Copies a file that is not looked into.
    fn other(&mut self, index: usize, locator: &Locator) -> Result<Json, DataError> {
        let bytes = locator.read(self.base)?.into_owned();
        if bytes.is_empty() {
            return Err(DataError::image(Path::new(&locator.display(self.base)), "empty file"));
        }
        Ok(self.push(member_name(index, None, locator.name()), bytes))
    }

    fn video(&mut self, index: usize, locators: &[Locator], fps: Option<f64>) -> Result<Json, DataError> {
        let names = match locators {
            [Locator::File(name)] if self.base.join(name).is_dir() => {
                let folder = self.base.join(name);
                let frames = in_folder(&folder)?;
                self.frames(index, &frames, &folder)?
            }
            [one] if is_clip(one) => {
                if self.look == Look::Whole && one.extension() == "gif" {
                    let wrong = |reason: String| DataError::image(Path::new(&one.display(self.base)), reason);
                    self.decoder.clip(&one.read(self.base)?, None, LIMITS, &Sampling::evenly(1)).map_err(wrong)?;
                }
                self.other(index, one)?
            }
            frames => self.frames(index, frames, self.base)?,
        };
        Ok(match fps {
            Some(fps) => json!({ "video": names, "fps": fps }),
            None => names,
        })
    }

    fn frames(&mut self, index: usize, frames: &[Locator], base: &Path) -> Result<Json, DataError> {
        if frames.is_empty() {
            return Err(DataError::image(base, "the video has no frames"));
        }
        let add = |(frame, locator): (usize, &Locator)| self.add(index, Some(frame), locator, base);
        Ok(Json::Array(frames.iter().enumerate().map(add).collect::<Result<_, _>>()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::in_process::InProcess;
    use crate::data::source::Conversation;

    fn picture() -> Vec<u8> {
        let mut bytes = std::io::Cursor::new(Vec::new());
        image::RgbImage::new(3, 2).write_to(&mut bytes, image::ImageFormat::Png).unwrap();
        bytes.into_inner()
    }

    /// Returns the conversation that a reader of shards makes of the members: names are members of the same key.
    fn read_back(members: &[Member]) -> Conversation {
        let mut record: Map<String, Json> = serde_json::from_slice(&members[0].1).unwrap();
        record.insert("messages".to_owned(), record["texts"].clone());
        let mut conversation = Conversation::parse(&Json::Object(record).to_string()).unwrap();
        let open = |locator: &mut Locator| {
            let (_, bytes) = members.iter().find(|(name, _)| name == locator.name()).unwrap();
            *locator = Locator::bytes(locator.name(), bytes.clone());
        };
        for source in &mut conversation.media {
            match source {
                MediaSource::Image(locator) => open(locator),
                MediaSource::Audio(audio) => open(&mut audio.locator),
                MediaSource::Video(video) => video.locators.iter_mut().for_each(open),
                MediaSource::Context(_) => {}
            }
        }
        conversation
    }

    #[test]
    fn a_conversation_comes_back_with_its_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let clip = folder.path().join("clip");
        std::fs::create_dir(&clip).unwrap();
        for path in ["a.png", "clip/2.png", "clip/10.png"] {
            std::fs::write(folder.path().join(path), picture()).unwrap();
        }
        let line = r#"{"messages":[{"role":"user","content":"x<image><video>y"},{"role":"assistant","content":"z"}],
            "images":["a.png"],"videos":[{"video":"clip","fps":2.5}]}"#;
        let content = Content::Messages(Conversation::parse(line).unwrap());
        let members = members(&content, folder.path(), Look::Whole, &InProcess).unwrap();
        let names: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["json", "0_a.png", "1_00000_2.png", "1_00001_10.png"]);
        let record: Json = serde_json::from_slice(&members[0].1).unwrap();
        assert_eq!(record["media"], "mix");
        assert_eq!(record["texts"][0]["content"], "x<image><video>y");
        assert_eq!(record["name"], json!(["0_a.png", {"video": ["1_00000_2.png", "1_00001_10.png"], "fps": 2.5}]));
        let back = read_back(&members);
        let Content::Messages(conversation) = &content else { unreachable!() };
        assert_eq!(back.turns, conversation.turns);
        let MediaSource::Video(video) = &back.media[1] else { panic!("a video") };
        assert_eq!((video.fps, video.locators.len()), (Some(2.5), 2));
        assert_eq!(back.media[0].name(), "0_a.png");
        assert_eq!(members[1].1[..], picture());
    }

    #[test]
    fn contexts_come_back_and_their_word_alone_stays_a_text() {
        let line = r#"{"messages":[{"role":"user","content":"x<context>y<context>"},
            {"role":"assistant","content":[{"type":"text","text":"a <context>"}]}],"contexts":["one","<context>"]}"#;
        let conversation = Conversation::parse(line).unwrap();
        let content = Content::Messages(conversation.clone());
        let members = members(&content, Path::new("."), Look::Whole, &InProcess).unwrap();
        let (back, texts) =
            (read_back(&members), |of: &Conversation| of.turns.iter().map(|it| it.parts.clone()).collect::<Vec<_>>());
        assert_eq!((&back.media, texts(&back)), (&conversation.media, texts(&conversation)));
    }

    #[test]
    fn texts_that_look_like_placeholders_stay_texts() {
        let line = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"say <image>"},{"type":"image"}]},
            {"role":"assistant","content":"<image>","name":"bot"}],"images":["a.png","b.png"]}"#;
        let mut conversation = Conversation::parse(line).unwrap();
        for source in &mut conversation.media {
            *source = MediaSource::Image(Locator::bytes(source.name(), picture()));
        }
        let members =
            members(&Content::Messages(conversation.clone()), Path::new(""), Look::Header, &InProcess).unwrap();
        let back = read_back(&members);
        assert_eq!(back.turns, conversation.turns);
        assert_eq!(back.media.len(), 2);
        // A reader takes `<video>` and `<audio>` for files where some are listed.
        for (text, lists) in [("a <video>", [true, false]), ("an <audio>", [false, true])] {
            let turn = Turn::text("user", text);
            let content = |[videos, audios]: [bool; 2]| message(&turn, videos, audios)["content"].clone();
            assert_eq!(content(lists), json!([{"type": "text", "text": text}]));
            assert_eq!(content(lists.map(|listed| !listed)), json!(text));
        }
    }

    #[test]
    fn what_is_no_picture_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("torn.png"), &picture()[..40]).unwrap();
        std::fs::write(folder.path().join("text.png"), "hello").unwrap();
        let reason = |name: &str, look| {
            let media = vec![MediaSource::Image(name.into())];
            let turns = vec![Turn::new("user", vec![Part::Image])];
            let content = Content::Messages(Conversation { turns, media });
            members(&content, folder.path(), look, &InProcess).map_err(|error| error.to_string())
        };
        assert!(reason("torn.png", Look::Header).is_ok());
        assert!(reason("torn.png", Look::Whole).unwrap_err().contains("torn.png"));
        assert!(reason("text.png", Look::Header).unwrap_err().contains("not a picture"));
        assert!(reason("gone.png", Look::Header).unwrap_err().contains("gone.png"));
    }
}
