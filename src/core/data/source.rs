//! A file of training samples: conversations, or texts whose long ones are cut into pieces.

use std::path::Path;

use serde::Deserialize;

use super::error::{BadSample, DataError};
use super::lines::Lines;
use super::messages::Conversation;
use super::packed::PackedSample;
use crate::config::{Format, Phase, TrainFile};

/// Places of a file at which its bytes a token are measured, and bytes that are looked at there.
const NUM_PROBES: usize = 32;
const PROBE_BYTES: usize = 2048;
/// A shorter text says little.
const MIN_PROBE_BYTES: usize = 64;
/// Tokens that may stand around a text.
const MARGIN: usize = 2;
/// How far back a cut moves to lie between words, in bytes; a quarter of a piece at most.
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
    /// Documents end to end, processed but for their pixels.
    Packed(PackedSample),
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
    /// `num_tokens` counts the tokens of a text.
    ///
    /// # Errors
    /// The file cannot be read or has no samples, its weight is none, or its format does not go with the phase.
    pub fn open(
        file: &TrainFile,
        phase: Phase,
        max_tokens: usize,
        num_tokens: impl Fn(&str) -> usize,
    ) -> Result<Self, DataError> {
        if !(file.weight.is_finite() && file.weight > 0.0) {
            return Err(DataError::Weight { path: file.path.clone(), weight: file.weight });
        }
        if file.format != Format::Messages && phase == Phase::Sft {
            let reason = "texts have no assistant to learn from: set train.phase to pretrain or midtrain, or format to \
                          messages";
            return Err(DataError::file(&file.path, reason));
        }
        let lines = Lines::open(&file.path)?;
        let len = lines.len();
        let mut source = Self { lines, format: file.format, before: Vec::new(), len, piece_bytes: usize::MAX };
        if source.format == Format::Messages {
            return Ok(source);
        }
        let room = max_tokens.saturating_sub(MARGIN).max(1);
        source.piece_bytes = (room as f64 * source.bytes_per_token(num_tokens)) as usize;
        if (0..len).any(|line| source.lines.num_bytes(line) > source.piece_bytes as u64) {
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
        let bad = |error: DataError| self.lines.bad(line, error.to_string());
        if self.format == Format::Messages {
            return Conversation::parse(&self.lines.read(line)?).map(Content::Messages).map_err(bad);
        }
        let text = self.text(line)?;
        let num_pieces = self.num_pieces(line);
        let (from, to) = (cut(&text, piece, num_pieces), cut(&text, piece + 1, num_pieces));
        let piece = Piece { text: text[from..to].to_owned(), begins: piece == 0, ends: piece + 1 == num_pieces };
        if piece.text.is_empty() {
            return Err(bad(DataError::Line("an empty text".to_owned())));
        }
        Ok(Content::Text(piece))
    }

    /// The text of a line.
    fn text(&self, line: usize) -> Result<String, BadSample> {
        let text = self.lines.read(line)?;
        if self.format == Format::Plain {
            return Ok(text.trim_end_matches(['\r', '\n']).to_owned());
        }
        let raw: Result<RawText, _> = serde_json::from_str(&text);
        raw.map(|raw| raw.text).map_err(|error| self.lines.bad(line, DataError::Line(error.to_string()).to_string()))
    }

    /// The fewest bytes a token of texts all over the file, at least 1: as many fit surely.
    fn bytes_per_token(&self, num_tokens: impl Fn(&str) -> usize) -> f64 {
        let step = self.lines.len().div_ceil(NUM_PROBES);
        let texts = (0..self.lines.len()).step_by(step).filter_map(|line| self.text(line).ok());
        let ratios = texts.filter(|text| text.len() >= MIN_PROBE_BYTES).map(|text| {
            let probe = &text[..text.floor_char_boundary(PROBE_BYTES)];
            probe.len() as f64 / num_tokens(probe).max(1) as f64
        });
        let least = ratios.fold(f64::INFINITY, f64::min);
        // Other places may have a few more tokens.
        if least.is_finite() { (least * 0.9).max(1.0) } else { 1.0 }
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
        let num_bytes = self.lines.num_bytes(line) as usize;
        // A cut between words makes a piece longer by a quarter at most.
        if num_bytes <= self.piece_bytes { 1 } else { num_bytes.div_ceil((self.piece_bytes / 5 * 4).max(1)) }
    }
}

/// Where piece `index` of `num` begins: at an equal share, moved back to a gap between words if one is near.
fn cut(text: &str, index: usize, num: usize) -> usize {
    if index == 0 || index >= num {
        return if index == 0 { 0 } else { text.len() };
    }
    let at = text.floor_char_boundary(text.len() / num * index + text.len() % num * index / num);
    // Only as far back as the piece that begins there may grow.
    let search = SEARCH.min((text.len() / num / 4).saturating_sub(4));
    let from = text.floor_char_boundary(at - search);
    text[from..at].rfind(char::is_whitespace).map_or(at, |offset| from + offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(text: &str, format: Format, max_tokens: usize) -> (Source, tempfile::NamedTempFile) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let train = TrainFile { path: file.path().to_owned(), format, weight: 1.0 };
        // Two bytes a token, at most.
        (Source::open(&train, Phase::Pretrain, max_tokens, |text| text.len().div_ceil(2)).unwrap(), file)
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
            assert!(pieces.len() > 5 && pieces.iter().all(|piece| piece.text.len() <= 54), "{pieces:?}");
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
        let error = Source::open(&train, Phase::Sft, 9, str::len).err().unwrap().to_string();
        assert!(error.contains("train.phase") && error.contains("a.txt"), "{error}");
    }
}
