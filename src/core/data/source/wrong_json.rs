//! Says what may be wrong with a record that is no JSON: mistakes that programs make when they write samples.

use serde_json::{Error, Value as Json};

/// Words of Python and of JavaScript that stand for values, and are none in JSON.
const WORDS: [&str; 6] = ["NaN", "Infinity", "None", "True", "False", "undefined"];

/// Returns the text to be put behind `error` that says what to do about a record of this text; empty: its mistake is not known here.
pub fn advice(text: &str, error: &Error) -> String {
    let record = text.trim();
    if error.is_eof() && record.starts_with(['{', '[']) {
        return "; it ends before its closing bracket: write each record on one line, or all of them as one JSON array, \
                and look whether the file is complete"
            .to_owned();
    }
    if record.starts_with("{'") || record.starts_with("[{'") {
        return "; single quotes are Python's and not those of JSON: write records with json.dumps".to_owned();
    }
    if record.strip_suffix(',').is_some_and(|record| serde_json::from_str::<Json>(record).is_ok()) {
        return "; a comma follows the record: leave it out, or write all records as one JSON array".to_owned();
    }
    match word_at(text, error) {
        Some(word) => format!("; `{word}` is no JSON: write null, true, false or a number"),
        None => String::new(),
    }
}

/// Returns the word that stands where reading stopped, if it is one of [`WORDS`].
fn word_at(text: &str, error: &Error) -> Option<&'static str> {
    let line = text.split('\n').nth(error.line().checked_sub(1)?)?.as_bytes();
    // The column is that of the word's first letter, or the last one that was read.
    let begin = error.column().saturating_sub(2).min(line.len());
    let near = line[begin..].trim_ascii_start();
    let near = near.strip_prefix(b":").unwrap_or(near).trim_ascii_start();
    let near = near.strip_prefix(b"-").unwrap_or(near);
    WORDS.into_iter().find(|word| near.starts_with(word.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> String {
        advice(text, &serde_json::from_str::<Json>(text).unwrap_err())
    }

    #[test]
    fn records_that_programs_write_wrongly_are_told_what_to_do() {
        for (text, part) in [
            ("{", "write each record on one line"),
            ("{\"a\": \"b", "the file is complete"),
            ("{'a': 'b'}", "json.dumps"),
            ("{\"a\": 1},", "a comma follows the record"),
            ("{\"a\": NaN}", "`NaN` is no JSON"),
            ("{\"a\":NaN, \"b\": 1}", "`NaN` is no JSON"),
            ("{\"a\": [1, None]}", "`None` is no JSON"),
            ("    {\"a\": NaN}  ", "`NaN` is no JSON"),
            ("{\"a\":\n True}", "`True` is no JSON"),
            ("{\"a\": -Infinity}", "`Infinity` is no JSON"),
        ] {
            assert!(said(text).contains(part), "{text}: {}", said(text));
        }
        for text in ["no json", "{\"a\": 1} x", "{\"a\" 1}", "é", "{\"é\": é}", "{\"a\": 1e400}", "{,", "", "\"a"] {
            assert_eq!(said(text), "", "{text}");
        }
    }
}
