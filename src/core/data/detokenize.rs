//! The text of tokens that come one by one, and what ends it: strings at which an answer stops.

use super::error::DataError;
use super::tokenizer::Tokenizer;

/// Stands in a decoded text for bytes that are no character, or not yet.
const INCOMPLETE: char = '\u{fffd}';

/// Tokens that are held back at most, as each is decoded with those before it: more are no part of a character, or have no text.
const MAX_HELD: usize = 32;

/// Turns tokens into text as they come. Together the pieces are the text of all tokens; none ends within a character.
///
/// The text that a token adds may depend on the token before it (a space between words), so each is decoded behind those of the last
/// piece, as text-generation-inference and vLLM do it.
#[derive(Debug, Default)]
pub struct TextStream {
    ids: Vec<i64>,
    /// The last piece's tokens begin here.
    begin: usize,
    /// Tokens before this one were given out.
    given: usize,
}

impl TextStream {
    /// Begins a text behind that of the tokens `ids`, whose first piece keeps a space that some tokenizers leave out of a text's
    /// beginning.
    pub fn behind(ids: &[i64]) -> Self {
        Self { ids: ids.to_vec(), begin: 0, given: ids.len() }
    }

    /// Returns the text that the token completes; empty while a character lacks bytes.
    ///
    /// # Errors
    /// The tokenizer cannot decode it.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: i64) -> Result<String, DataError> {
        self.ids.push(id);
        let piece = self.piece(tokenizer)?;
        let is_full = self.ids.len() - self.given > MAX_HELD;
        if is_full && piece.is_empty() {
            self.ids.truncate(self.given);
        }
        Ok(if piece.ends_with(INCOMPLETE) && !is_full { String::new() } else { self.give(piece) })
    }

    /// Returns the rest of the text when no token follows: characters that stayed incomplete.
    ///
    /// # Errors
    /// The tokenizer cannot decode it.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String, DataError> {
        let piece = self.piece(tokenizer)?;
        Ok(self.give(piece))
    }

    fn piece(&self, tokenizer: &Tokenizer) -> Result<String, DataError> {
        let before = tokenizer.decode(&self.ids[self.begin..self.given])?;
        let text = tokenizer.decode(&self.ids[self.begin..])?;
        // A token that changes what is before it adds what goes beyond that.
        let common = text.char_indices().zip(before.chars()).take_while(|((_, one), other)| one == other).count();
        let start = text.char_indices().nth(common).map_or(text.len(), |(at, _)| at);
        Ok(text[start..].to_owned())
    }

    fn give(&mut self, piece: String) -> String {
        if !piece.is_empty() {
            self.begin = self.given;
            self.given = self.ids.len();
        }
        piece
    }
}

/// Ends a text at the first of some strings, which is left out. Text that may become one is held back.
#[derive(Debug, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
    has_stopped: bool,
}

impl StopStrings {
    /// Begins without text. Empty strings stop nothing.
    pub fn new(stops: impl IntoIterator<Item = String>) -> Self {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        Self { stops, ..Self::default() }
    }

    /// Returns whether a stop string was found, after which [`StopStrings::push`] gives out nothing.
    pub fn has_stopped(&self) -> bool {
        self.has_stopped
    }

    /// Returns the part of the text so far that is certain to come before any stop string and was not returned before.
    pub fn push(&mut self, piece: &str) -> String {
        if self.has_stopped {
            return String::new();
        }
        self.held += piece;
        // The first stop in the text; of those that begin at one place it does not matter which.
        if let Some(at) = self.stops.iter().filter_map(|stop| self.held.find(stop)).min() {
            self.has_stopped = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let may_begin = |at: &usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[*at..]));
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest);
        let mut places = self.held.char_indices().map(|(at, _)| at).skip_while(|at| *at < from);
        let keep = places.find(may_begin).unwrap_or(self.held.len());
        let rest = self.held.split_off(keep);
        std::mem::replace(&mut self.held, rest)
    }

    /// Returns the text that was held back, when no text follows.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::data::digits::{MODEL, write_model};

    fn tokenizer() -> Tokenizer {
        let folder = tempfile::tempdir().unwrap();
        write_model(folder.path(), &MODEL).unwrap();
        Tokenizer::open(folder.path(), &serde_json::json!({"vocab_size": 272}), &serde_json::Value::Null).unwrap()
    }

    fn pieces(tokenizer: &Tokenizer, ids: &[i64]) -> Vec<String> {
        let mut stream = TextStream::default();
        let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(tokenizer, id).unwrap()).collect();
        pieces.push(stream.finish(tokenizer).unwrap());
        pieces
    }

    /// A token of the digits' tokenizer is a byte.
    #[test]
    fn characters_come_whole() {
        let tokenizer = tokenizer();
        let ids: Vec<i64> = tokenizer.encode("aé€😀b").unwrap().iter().map(|token| token.id).collect();
        assert_eq!(ids.len(), 11);
        assert_eq!(pieces(&tokenizer, &ids), ["a", "", "é", "", "", "€", "", "", "", "😀", "b", ""]);
        // What stays incomplete is told at the end.
        assert_eq!(pieces(&tokenizer, &ids[..4]).concat(), "aé\u{fffd}");
    }

    #[test]
    fn tokens_without_text_or_without_a_character_are_not_held_for_ever() {
        let tokenizer = tokenizer();
        let id = |text: &str| tokenizer.encode(text).unwrap()[0].id;
        let told = pieces(&tokenizer, &vec![id("é"); 4 * MAX_HELD]);
        assert_eq!(told.concat(), "\u{fffd}".repeat(4 * MAX_HELD));
        assert!(told[..2 * MAX_HELD].iter().any(|piece| !piece.is_empty()));
        let mut stream = TextStream::default();
        for _ in 0..4 * MAX_HELD {
            assert_eq!(stream.push(&tokenizer, id("<|im_start|>")).unwrap(), "");
            assert!(stream.ids.len() <= MAX_HELD);
        }
        assert_eq!(stream.push(&tokenizer, id("a")).unwrap(), "a");
    }

    #[test]
    fn a_text_that_goes_on_begins_with_its_space() {
        let folder = tempfile::tempdir().unwrap();
        let model = serde_json::json!({"type": "WordLevel", "vocab": {"▁a": 0, "▁b": 1, "c": 2}, "unk_token": "c"});
        let file = serde_json::json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": null, "pre_tokenizer": null, "post_processor": null, "model": model,
            "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}});
        std::fs::write(folder.path().join("tokenizer.json"), file.to_string()).unwrap();
        let config = serde_json::json!({"vocab_size": 3});
        let tokenizer = Tokenizer::open(folder.path(), &config, &serde_json::Value::Null).unwrap();
        let text = |mut stream: TextStream, ids: &[i64]| {
            let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(&tokenizer, id).unwrap()).collect();
            pieces.push(stream.finish(&tokenizer).unwrap());
            pieces.concat()
        };
        assert_eq!(text(TextStream::default(), &[1, 2, 0]), "bc a");
        assert_eq!(text(TextStream::behind(&[0, 2]), &[1, 2, 0]), " bc a");
        assert_eq!(text(TextStream::behind(&[0, 2]), &[2]), "c");
        assert_eq!(text(TextStream::behind(&[0, 2]), &[]), "");
    }

    #[test]
    fn stop_strings_are_found_across_pieces_and_nothing_else_is_held() {
        let mut stops = StopStrings::new(["\nUser:".to_owned(), String::new(), "END".to_owned()]);
        let given: Vec<String> = ["ab", "c\nUs", "ual\n", "Use", "r: x", "more"].map(|piece| stops.push(piece)).into();
        assert_eq!(given, ["ab", "c", "\nUsual", "", "", ""]);
        assert!(stops.has_stopped() && stops.finish().is_empty());
        let mut stops = StopStrings::new(["END".to_owned()]);
        assert_eq!((stops.push("xEN"), stops.finish(), stops.has_stopped()), ("x".into(), "EN".into(), false));
        let mut none = StopStrings::default();
        assert_eq!(none.push("é"), "é");
    }

    proptest! {
        #[test]
        fn pieces_are_the_text(text in "\\PC{0,12}", extra in prop::collection::vec(0i64..256, 0..8)) {
            let tokenizer = tokenizer();
            let mut ids: Vec<i64> = tokenizer.encode(&text).unwrap().iter().map(|token| token.id).collect();
            // The tokenizer composes characters (NFC), so the text may be written otherwise.
            prop_assert_eq!(pieces(&tokenizer, &ids).concat(), tokenizer.decode(&ids).unwrap());
            ids.extend(extra);
            let _ = pieces(&tokenizer, &ids);
        }

        #[test]
        fn a_stop_string_ends_the_text_wherever_pieces_end(text in "[abé]{0,12}", stop in "[abé]{1,3}", cut in 1usize..4) {
            let mut stops = StopStrings::new([stop.clone()]);
            let letters: Vec<char> = text.chars().collect();
            let mut given: String = letters.chunks(cut).map(|it| stops.push(&it.iter().collect::<String>())).collect();
            given += &stops.finish();
            prop_assert_eq!(given, text.split(&stop).next().unwrap_or(""));
            prop_assert_eq!(stops.has_stopped(), text.contains(&stop));
        }
    }
}
