//! A file of training samples: conversations, or texts whose long ones are cut into pieces.

use std::path::Path;

use serde::Deserialize;

use super::error::{BadSample, DataError};
use super::lines::Lines;
use super::messages::Conversation;
use crate::config::{Format, Phase, TrainFile};

/// Bytes of a piece for each token that a sequence may have: hardly any text has fewer bytes a token.
const BYTES_PER_TOKEN: usize = 2;
/// How far a cut moves to lie between words.
const SEARCH: usize = 64;

/// One file, opened.
pub struct Source {
    lines: Lines,
    format: Format,
    /// For each line how many samples stand before it; empty where every line is one.
    before: Vec<usize>,
    len: usize,
    piece_bytes: usize,
}

/// What a sample is made from.
#[derive(Debug, PartialEq)]
pub enum Content {
    Messages(Conversation),
    Text(Piece),
}

/// A text or a piece of one.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece {
    pub text: String,
    /// It begins the text.
    pub begins: bool,
    /// It ends the text.
    pub ends: bool,
}

#[derive(Deserialize)]
struct RawText {
    text: String,
}

impl Source {
    /// # Errors
    /// The file cannot be read or has no samples, its weight is none, or its format does not go with the phase.
    pub fn open(file: &TrainFile, phase: Phase, max_tokens: usize) -> Result<Self, DataError> {
        if !(file.weight.is_finite() && file.weight > 0.0) {
            return Err(DataError::Weight { path: file.path.clone(), weight: file.weight });
        }
        if file.format != Format::Messages && phase == Phase::Sft {
            let reason = "texts have no assistant to learn from: set train.phase to pretrain or midtrain, or format to \
                          messages";
            return Err(DataError::file(&file.path, reason));
        }
        let lines = Lines::open(&file.path)?;
        let piece_bytes = max_tokens.saturating_mul(BYTES_PER_TOKEN).max(1);
        let mut source = Self { len: lines.len(), lines, format: file.format, before: Vec::new(), piece_bytes };
        let is_long = |line: usize| source.lines.num_bytes(line) > piece_bytes as u64;
        if source.format != Format::Messages && (0..source.lines.len()).any(is_long) {
            let mut sum = 0;
            for line in 0..source.lines.len() {
                source.before.push(sum);
                sum += source.num_pieces(line);
            }
            source.len = sum;
        }
        Ok(source)
    }

    /// Samples in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// What files are relative to.
    pub fn base(&self) -> &Path {
        self.lines.path().parent().unwrap_or(Path::new(""))
    }

    pub fn read(&self, index: usize) -> Result<Content, BadSample> {
        let (line, piece) = self.place(index);
        let text = self.lines.read(line)?;
        let bad = |error: DataError| self.lines.bad(line, error.to_string());
        let text = match self.format {
            Format::Messages => return Conversation::parse(&text).map(Content::Messages).map_err(bad),
            Format::Text => {
                let raw: Result<RawText, _> = serde_json::from_str(&text);
                raw.map_err(|error| bad(DataError::Line(error.to_string())))?.text
            }
            Format::Plain => text.trim_end_matches(['\r', '\n']).to_owned(),
        };
        let num_pieces = self.num_pieces(line);
        let (from, to) = (cut(&text, piece, num_pieces), cut(&text, piece + 1, num_pieces));
        let piece = Piece { text: text[from..to].to_owned(), begins: piece == 0, ends: piece + 1 == num_pieces };
        if piece.text.is_empty() {
            return Err(bad(DataError::Line("an empty text".to_owned())));
        }
        Ok(Content::Text(piece))
    }

    /// A bad sample of this file.
    pub fn bad(&self, index: usize, reason: String) -> BadSample {
        self.lines.bad(self.place(index).0, reason)
    }

    /// The line of a sample, and which piece of it.
    fn place(&self, index: usize) -> (usize, usize) {
        if self.before.is_empty() {
            return (index, 0);
        }
        let line = self.before.partition_point(|&before| before <= index) - 1;
        (line, index - self.before[line])
    }

    fn num_pieces(&self, line: usize) -> usize {
        (self.lines.num_bytes(line) as usize).div_ceil(self.piece_bytes).max(1)
    }
}

/// Where piece `index` of `num` begins: at an equal share, moved to the next gap between words if that is near.
fn cut(text: &str, index: usize, num: usize) -> usize {
    if index == 0 || index >= num {
        return if index == 0 { 0 } else { text.len() };
    }
    let mut at = text.len() / num * index + text.len() % num * index / num;
    while !text.is_char_boundary(at) {
        at += 1;
    }
    let gap = text[at..].char_indices().take(SEARCH).find(|(_, letter)| letter.is_whitespace());
    // A piece is far longer than the search, unless a test makes it short.
    let furthest = text.len() / num * (index + 1);
    gap.map(|(offset, _)| at + offset).filter(|&at| at < furthest).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(text: &str, format: Format, max_tokens: usize) -> (Source, tempfile::NamedTempFile) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let train = TrainFile { path: file.path().to_owned(), format, weight: 1.0 };
        (Source::open(&train, Phase::Pretrain, max_tokens).unwrap(), file)
    }

    #[test]
    fn long_texts_are_cut_and_nothing_is_lost() {
        let long = "one two three four five sechs sieben ächtzehn ".repeat(9);
        let json = serde_json::json!({"text": format!("{long}\n\"end\"")}).to_string();
        for (text, format) in [(format!("short\n\n{long}\nlast"), Format::Plain), (json, Format::Text)] {
            let (source, _file) = open(&text, format, 32);
            let pieces: Vec<Piece> = (0..source.len())
                .map(|index| match source.read(index).unwrap() {
                    Content::Text(piece) => piece,
                    other => panic!("{other:?}"),
                })
                .collect();
            assert!(pieces.len() > 5 && pieces.iter().all(|piece| piece.text.len() <= 64 + SEARCH), "{pieces:?}");
            let mut documents = vec![String::new()];
            for piece in &pieces {
                assert_eq!(piece.begins, documents.last().unwrap().is_empty());
                documents.last_mut().unwrap().push_str(&piece.text);
                if piece.ends {
                    documents.push(String::new());
                }
            }
            let expected = match format {
                Format::Plain => vec!["short".to_owned(), long.clone(), "last".to_owned(), String::new()],
                _ => vec![format!("{long}\n\"end\""), String::new()],
            };
            assert_eq!(documents, expected);
            assert_eq!(source.bad(source.len() - 1, String::new()).line, if format == Format::Plain { 4 } else { 1 });
        }
    }

    #[test]
    fn what_is_no_text_is_said() {
        let (source, _file) = open("{\"text\": \"\"}\n{}\n", Format::Text, 99);
        assert_eq!(source.read(0).unwrap_err().reason, "not a sample: an empty text");
        assert!(source.read(1).unwrap_err().reason.contains("text"));
        let train = TrainFile { path: "a.txt".into(), format: Format::Plain, weight: 1.0 };
        let error = Source::open(&train, Phase::Sft, 9).err().unwrap().to_string();
        assert!(error.contains("train.phase") && error.contains("a.txt"), "{error}");
    }
}
