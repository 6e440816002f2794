//! The `messages` format: one conversation a line, as Hugging Face's chat data and LLaMA-Factory write it.
//!
//! ```json
//! {"messages": [{"role": "user", "content": "<image>Read the number."},
//!               {"role": "assistant", "content": "4071"}], "images": ["img/000001.png"]}
//! ```
//!
//! Content is a string, in which `<image>` stands for the next of `images`, or a list of parts
//! `{"type": "text", "text": …}` and `{"type": "image", "image": …}`.

use serde::{Deserialize, Serialize};

use super::error::DataError;

/// Stands for a picture in a content string.
pub const IMAGE_PLACEHOLDER: &str = "<image>";

/// One conversation. `images` are in the order of the image parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversation {
    pub turns: Vec<Turn>,
    pub images: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// `system`, `user`, `assistant` or `tool`; learnt when `assistant`.
    pub role: String,
    pub parts: Vec<Part>,
}

/// A part of a turn, serialized as chat templates expect it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Part {
    Text { text: String },
    Image,
}

#[derive(Deserialize)]
struct RawLine {
    messages: Vec<RawTurn>,
    #[serde(default)]
    images: Vec<String>,
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
}

impl Conversation {
    /// One line of the file. The error says what is wrong with it.
    pub fn parse(line: &str) -> Result<Self, DataError> {
        let raw: RawLine = serde_json::from_str(line).map_err(|error| DataError::Line(error.to_string()))?;
        let mut listed = raw.images.into_iter();
        let mut images = Vec::new();
        let mut turns = Vec::with_capacity(raw.messages.len());
        for turn in raw.messages {
            let mut parts = Vec::new();
            match turn.content {
                RawContent::Text(text) => {
                    for (index, piece) in text.split(IMAGE_PLACEHOLDER).enumerate() {
                        if index > 0 {
                            images.push(listed.next().ok_or_else(too_few)?);
                            parts.push(Part::Image);
                        }
                        if !piece.is_empty() {
                            parts.push(Part::Text { text: piece.to_owned() });
                        }
                    }
                }
                RawContent::Parts(raw_parts) => {
                    for part in raw_parts {
                        match (part.r#type.as_str(), part.text, part.image) {
                            ("text", Some(text), None) => parts.push(Part::Text { text }),
                            ("image", None, own) => {
                                images.push(own.or_else(|| listed.next()).ok_or_else(too_few)?);
                                parts.push(Part::Image);
                            }
                            (other, ..) => {
                                return Err(DataError::Line(format!(
                                    "a part of type {other:?} with these fields; known: \
                                     {{\"type\":\"text\",\"text\":…}} and {{\"type\":\"image\"}}"
                                )));
                            }
                        }
                    }
                }
            }
            turns.push(Turn { role: turn.role, parts });
        }
        let unused = listed.count();
        if unused > 0 {
            return Err(DataError::Line(format!(
                "`images` lists {} but the messages hold {} {IMAGE_PLACEHOLDER}",
                images.len() + unused,
                images.len()
            )));
        }
        if turns.is_empty() {
            return Err(DataError::Line("`messages` is empty".to_owned()));
        }
        Ok(Self { turns, images })
    }
}

impl Turn {
    pub fn text(role: &str, text: &str) -> Self {
        Self { role: role.to_owned(), parts: vec![Part::Text { text: text.to_owned() }] }
    }

    /// The text parts in one string.
    pub fn joined_text(&self) -> String {
        self.parts.iter().map(|part| if let Part::Text { text } = part { text } else { "" }).collect()
    }
}

fn too_few() -> DataError {
    DataError::Line(format!("more {IMAGE_PLACEHOLDER} in the messages than files in `images`"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn strings_and_parts_mean_the_same() {
        let string = r#"{"messages":[{"role":"user","content":"<image>Read<image>it."},{"role":"assistant","content":"1"}],"images":["a.png","b.png"]}"#;
        let parts = r#"{"messages":[{"role":"user","content":[{"type":"image"},{"type":"text","text":"Read"},
            {"type":"image","image":"b.png"},{"type":"text","text":"it."}]},
            {"role":"assistant","content":[{"type":"text","text":"1"}]}],"images":["a.png"]}"#;
        let conversation = Conversation::parse(string).unwrap();
        assert_eq!(conversation, Conversation::parse(parts).unwrap());
        assert_eq!(conversation.images, ["a.png", "b.png"]);
        assert_eq!(conversation.turns[0].joined_text(), "Readit.");
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
            (r#"{"messages":[{"role":"user","content":[{"type":"audio"}]}]}"#, "\"audio\""),
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
