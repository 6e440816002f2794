//! A line as a conversation.

use serde_json::{Map, Value as Json};

use super::listed::Listed;
use super::raw::{RawContent, RawImage, RawLine, RawPart, listed};
use super::{Conversation, Turn, Written, loss};
use crate::data::error::DataError;
use crate::data::source::locate::{AsNamed, Locate};

impl Conversation {
    /// Parses one line of the file. The error says what is wrong with it.
    pub fn parse(line: &str) -> Result<Self, DataError> {
        let json = serde_json::from_str(line).map_err(|error| DataError::Line(error.to_string()))?;
        Self::from_json(json, &AsNamed)
    }

    /// Reads one record, whose files `files` finds.
    pub(in crate::data::source) fn from_json(record: Json, files: &dyn Locate) -> Result<Self, DataError> {
        let raw: RawLine = serde_json::from_value(record).map_err(|error| DataError::Line(error.to_string()))?;
        let images: Vec<String> = listed(raw.images).map(RawImage::path).collect();
        let (images, videos, audios) = (images.into_iter(), listed(raw.videos), listed(raw.audios));
        let contexts = listed(raw.contexts);
        let (has_videos, has_audios, has_contexts) = (videos.len() > 0, audios.len() > 0, contexts.len() > 0);
        let media = Vec::new();
        let mut listed =
            Listed { files, images, videos, audios, contexts, has_videos, has_audios, has_contexts, media };
        let mut turns = Vec::with_capacity(raw.messages.len());
        for turn in raw.messages {
            let mut unread = Vec::new();
            let (written, parts) = match turn.content {
                None => (Written::Absent, Vec::new()),
                Some(None) => (Written::Null, Vec::new()),
                Some(Some(RawContent::Text(text))) => (Written::Text, listed.split(&text)?),
                Some(Some(RawContent::Parts(parts))) => {
                    unread.extend(parts.iter().flat_map(RawPart::unread));
                    let parts = parts.into_iter().map(|part| listed.part(part)).collect::<Result<_, _>>()?;
                    (Written::Parts, parts)
                }
            };
            let mut fields: Map<String, Json> = turn.fields.into_iter().filter(|(_, value)| !value.is_null()).collect();
            let learn = loss::take(&mut fields)?;
            turns.push(Turn { written, fields, unread, learn, ..Turn::new(&turn.role, parts) });
        }
        let media = listed.finish()?;
        let Some(first) = turns.first_mut() else {
            return Err(DataError::Line("`messages` is empty".to_owned()));
        };
        first.tools = tools(raw.tools)?;
        first.kwargs = kwargs(raw.chat_template_kwargs)?;
        Ok(Self { turns, media })
    }
}

/// Descriptions of functions: a list, or its JSON text, as ShareGPT files have it; in tables each may be a text of its own.
fn tools(raw: Option<Json>) -> Result<Vec<Json>, DataError> {
    let wrong = |error: serde_json::Error| DataError::Line(format!("`tools` is not valid JSON: {error}"));
    let parsed = |value: Json| match value {
        Json::String(text) if text.trim().is_empty() => Ok(Json::Null),
        Json::String(text) => serde_json::from_str(&text).map_err(wrong),
        other => Ok(other),
    };
    let function = |value: Json| match parsed(value)? {
        function @ Json::Object(_) => Ok(function),
        other => Err(DataError::Line(format!("`tools` must be a list of functions, found {other:.40} in it"))),
    };
    match parsed(raw.unwrap_or_default())? {
        Json::Null => Ok(Vec::new()),
        Json::Array(tools) => tools.into_iter().map(function).collect(),
        one @ Json::Object(_) => Ok(vec![one]),
        _ => Err(DataError::Line("`tools` must be a list of functions".to_owned())),
    }
}

/// Variables for the chat template: an object, or its JSON text.
fn kwargs(raw: Option<Json>) -> Result<Map<String, Json>, DataError> {
    let wrong = || DataError::Line("`chat_template_kwargs` must be an object".to_owned());
    match raw {
        None | Some(Json::Null) => Ok(Map::new()),
        Some(Json::Object(kwargs)) => Ok(kwargs),
        Some(Json::String(text)) => serde_json::from_str(&text).map_err(|_| wrong()),
        Some(_) => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::data::audio::{AudioSource, Segment};
    use crate::data::locator::Locator;
    use crate::data::source::MediaSource;

    #[test]
    fn strings_and_parts_mean_the_same() {
        let string = r#"{"messages":[{"role":"user","content":"<image>Read<video>it."},{"role":"assistant","content":"1"}],
            "images":["a.png"],"videos":[{"video":["1.png","2.png"],"fps":4}]}"#;
        let parts = r#"{"messages":[{"role":"user","content":[{"type":"image"},{"type":"text","text":"Read"},
            {"type":"video","video":["1.png","2.png"],"fps":4},{"type":"text","text":"it."}]},
            {"role":"assistant","content":[{"type":"text","text":"1"}]}],"images":["a.png"]}"#;
        let conversation = Conversation::parse(string).unwrap();
        let mut same = Conversation::parse(parts).unwrap();
        same.turns.iter_mut().for_each(|turn| assert_eq!(std::mem::take(&mut turn.written), Written::Parts));
        assert_eq!(conversation, same);
        assert_eq!(conversation.images().collect::<Vec<_>>(), [&Locator::from("a.png")]);
        assert_eq!((conversation.turns[0].joined_text().as_str(), conversation.turns[0].num_media()), ("Readit.", 2));
        let MediaSource::Video(video) = &conversation.media[1] else { panic!("a video") };
        assert_eq!((video.locators.len(), video.fps), (2, Some(4.0)));
        // Without videos `<video>` is text.
        let html = r#"{"messages":[{"role":"user","content":"<video> is a tag"}]}"#;
        assert_eq!(Conversation::parse(html).unwrap().turns[0].joined_text(), "<video> is a tag");
    }

    #[test]
    fn keys_of_parts_that_nothing_reads_are_kept_by_name() {
        let line = r#"{"messages":[{"role":"user","content":[
            {"type":"image_url","image_url":{"url":"a.png","detail":"low","format":null}},
            {"type":"image","image":"b.png","max_pixels":9,"index":null},
            {"type":"video","video":"c.mp4","fps":2},{"type":"audio","audio":"d.wav","start":1,"note":"x"},
            {"type":"text","text":"x","cache_control":{}}]}]}"#;
        let turns = Conversation::parse(line).unwrap().turns;
        assert_eq!(turns[0].unread, ["detail", "max_pixels", "note", "cache_control"]);
        let plain = r#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":"a.png"}]}]}"#;
        assert!(Conversation::parse(plain).unwrap().turns[0].unread.is_empty());
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
        // As transformers has them: text stays text, and null is not "".
        assert_eq!(assistant.fields["tool_calls"][0]["function"]["arguments"], "{\"a\": 1}");
        assert_eq!((assistant.written, tool.written), (Written::Null, Written::Text));
        assert!(assistant.parts.is_empty() && tool.fields["tool_call_id"] == "c");
        assert_eq!(conversation.media[0], MediaSource::Image(Locator::bytes("data.png", *b"hi")));
        assert_eq!(conversation.media[1], MediaSource::Audio(Locator::from("a.wav").into()));
    }

    #[test]
    fn tools_are_functions_however_they_are_written() {
        let function = serde_json::json!({"type": "function", "function": {"name": "f"}});
        let text = serde_json::json!(function.to_string());
        for tools in [serde_json::json!([function]), serde_json::json!([text]), function.clone(), text] {
            let line = format!(r#"{{"messages":[{{"role":"user","content":"x"}}],"tools":{tools}}}"#);
            assert_eq!(Conversation::parse(&line).unwrap().turns[0].tools, std::slice::from_ref(&function), "{line}");
        }
    }

    #[test]
    fn pictures_may_be_listed_with_their_paths() {
        let read = |images: &str| {
            let line = format!(r#"{{"messages":[{{"role":"user","content":"<image>"}}],"images":{images}}}"#);
            Conversation::parse(&line).map(|read| read.media).map_err(|error| error.to_string())
        };
        let expected = vec![MediaSource::Image(Locator::from("a.png"))];
        for images in [r#"["a.png"]"#, r#"[{"path":"a.png","bytes":null}]"#, r#"{"path":"a.png"}"#, r#""a.png""#] {
            assert_eq!(read(images), Ok(expected.clone()), "{images}");
        }
        for images in [r#"[{"path":"a.png","bytes":"iVBO"}]"#, r#"[{"bytes":null}]"#, r#"[{"path":null}]"#] {
            let error = read(images).unwrap_err();
            assert!(error.contains("must be a name or a list of names"), "{images}: {error}");
        }
    }

    #[test]
    fn a_part_of_a_recording_may_be_meant() {
        let segment = |start, end| Segment { start, end };
        let line = r#"{"messages":[{"role":"user","content":[{"type":"audio","audio":"a.wav","start":1.5,"end":2},
            {"type":"audio","path":"a.wav","offset":1},{"type":"audio"},{"type":"audio","duration":0.5}]}],
            "audios":[{"audio":"b.wav","offset":2,"duration":3},"c.wav"]}"#;
        let found = Conversation::parse(line).unwrap().media;
        let expected = [
            ("a.wav", segment(1.5, Some(2.0))),
            ("a.wav", segment(1.0, None)),
            ("b.wav", segment(2.0, Some(5.0))),
            ("c.wav", segment(0.0, Some(0.5))),
        ];
        let expected =
            expected.map(|(name, segment)| MediaSource::Audio(AudioSource { locator: Locator::from(name), segment }));
        assert_eq!(found, expected);
        for (part, reason) in [
            (r#""type":"audio","audio":"a.wav","start":1,"offset":1"#, "`start` and `offset`"),
            (r#""type":"audio","audio":"a.wav","end":1,"duration":1"#, "`end` and `duration`"),
            (r#""type":"audio","audio":"a.wav","start":3,"end":2"#, "ends at 2 s, but begins at 3 s"),
            (r#""type":"video","video":"a.mp4","start":3"#, "only recordings"),
        ] {
            let line = format!(r#"{{"messages":[{{"role":"user","content":[{{{part}}}]}}]}}"#);
            let error = Conversation::parse(&line).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (line, part) in [
            ("", "EOF"),
            ("[1]", "invalid"),
            (r#"{"messages":[]}"#, "empty"),
            (r#"{"images":[]}"#, "messages"),
            (r#"{"messages":[{"role":"user","content":"<image>"}]}"#, "more <image>"),
            (r#"{"messages":[{"role":"user","content":"<image>"}],"path":"a"}"#, "the files: columns: {images: FIELD}"),
            (r#"{"messages":[{"role":"user","content":"<image><image>"}],"images":"a"}"#, "than `images` lists"),
            (r#"{"messages":[{"role":"user","content":"x"}],"images":["a","b"]}"#, "lists 2, but the messages have 0"),
            (r#"{"messages":[{"role":"user","content":"<video><video>"}],"videos":["a"]}"#, "more <video>"),
            (r#"{"messages":[{"role":"user","content":[{"type":"audio"}]}]}"#, "more <audio>"),
            (r#"{"messages":[{"role":"user","content":[{"type":"text"}]}]}"#, "of type \"text\""),
            (r#"{"messages":[{"role":"user","content":"x"}],"tools":"["}"#, "`tools`"),
            (r#"{"messages":[{"role":"user","content":"x"}],"tools":["f"]}"#, "`tools` is not valid JSON"),
            (r#"{"messages":[{"role":"user","content":"x"}],"tools":[1]}"#, "list of functions, found 1 in it"),
            (r#"{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":[1]}"#, "`chat_template_kwargs`"),
            (
                r#"{"messages":[{"role":"user","content":[{"type":"video","video":"a","fps":0}]}]}"#,
                "a finite number above 0, found 0",
            ),
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
