//! Bytes, numbers and words as text of another kind: hexadecimal digits, grouped digits, and text within HTML or SVG.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::ffi::OsStr;
use std::fmt::Write;

/// Bytes in lower-case hexadecimal digits.
pub fn hex(bytes: impl AsRef<[u8]>) -> String {
    let bytes = bytes.as_ref();
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        write!(text, "{byte:02x}").expect("a string takes all");
    }
    text
}

/// Bytes in base 64, padded.
pub fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Formats the digits of a number in groups of three: `12,345`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&[u8]> = digits.as_bytes().rchunks(3).rev().collect();
    String::from_utf8_lossy(&groups.join(&b","[..])).into_owned()
}

/// Returns a noun for so many of what it names: `pack`, `packs`.
pub fn plural(noun: &str, count: u64) -> String {
    format!("{noun}{}", if count == 1 { "" } else { "s" })
}

/// Returns a count with its noun: `1 pack`, `2 packs`.
pub fn counted(count: u64, noun: &str) -> String {
    format!("{count} {}", plural(noun, count))
}

/// Returns the verb that follows so many: one `was`, others `were`.
pub fn were(count: u64) -> &'static str {
    if count == 1 { "was" } else { "were" }
}

/// Returns a path or another text as a word of a shell's command, in quotes where it has anything but letters, digits and signs of
/// ASCII that no shell reads: other letters are blanks in some locales.
pub fn shell_word(word: &(impl AsRef<OsStr> + ?Sized)) -> String {
    let word = word.as_ref().to_string_lossy();
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+=:,@%".contains(letter);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.into_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// Returns a text as it is written in HTML, XML and their attributes.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '&' => escaped += "&amp;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn digits_are_in_groups_of_three() {
        assert_eq!([7, 999, 12_345, 1_000_000].map(grouped), ["7", "999", "12,345", "1,000,000"]);
    }

    #[test]
    fn one_of_something_is_singular() {
        assert_eq!([0, 1, 2].map(|count| plural("step", count)), ["steps", "step", "steps"]);
        assert_eq!(
            [0, 1, 1000].map(|count| counted(count, "bad sample")),
            ["0 bad samples", "1 bad sample", "1000 bad samples"]
        );
    }

    #[test]
    fn a_path_is_one_word_of_a_command() {
        let words = ["runs/a-1.yaml", "über", "", "my run", "it's $HOME"].map(shell_word);
        assert_eq!(words, ["runs/a-1.yaml", "'über'", "''", "'my run'", "'it'\\''s $HOME'"]);
        assert_eq!(shell_word(Path::new("a\u{3000}b")), "'a\u{3000}b'");
    }

    #[test]
    fn bytes_are_two_digits_each_and_markup_is_none() {
        assert_eq!((hex([0, 10, 255]).as_str(), base64(b"a\xff").as_str()), ("000aff", "Yf8="));
        assert_eq!(escape("<a href=\"x\">'&'</a>"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
    }
}
