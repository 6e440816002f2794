//! Texts before their words and characters are compared.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;
use tokenizers::normalizers::unicode::NFKC;
use tokenizers::{NormalizedString, Normalizer};

use crate::config::Normalize;

/// Stands between the language and the transcript in an answer of Qwen3-ASR, `language English<asr_text>Hello.`
const ASR_TEXT: &str = "<asr_text>";

/// Words of the text, normalized; of Qwen3-ASR's answers those of the transcript, as its processor takes them.
pub fn words(text: &str, how: Normalize) -> Vec<String> {
    let text = match how {
        Normalize::Basic => Cow::Owned(basic(transcript(text))),
        Normalize::None => Cow::Borrowed(text),
    };
    text.split_whitespace().map(str::to_owned).collect()
}

/// Returns the transcript in an answer, as Qwen3-ASR's processor takes it; other answers are transcripts.
pub fn transcript(answer: &str) -> &str {
    answer.split_once(ASR_TEXT).map_or(answer, |(_, transcript)| transcript).trim()
}

/// Characters of the text, normalized, with one space between words.
pub fn characters(text: &str, how: Normalize) -> Vec<char> {
    words(text, how).join(" ").chars().collect()
}

/// Returns the rules of transformers' `BasicTextNormalizer`, which are Whisper's for languages other than English: lower case, nothing in
/// brackets or parentheses, NFKC, and a space for every mark, symbol and punctuation.
fn basic(text: &str) -> String {
    static BRACKETS: LazyLock<Regex> = LazyLock::new(|| regex(r"[<\[][^>\]]*[>\]]"));
    static PARENTHESES: LazyLock<Regex> = LazyLock::new(|| regex(r"\([^)]+?\)"));
    static SYMBOLS: LazyLock<Regex> = LazyLock::new(|| regex(r"[\p{M}\p{S}\p{P}]"));
    let lower = text.to_lowercase();
    let spoken = BRACKETS.replace_all(&lower, "");
    let spoken = PARENTHESES.replace_all(&spoken, "");
    let mut composed = NormalizedString::from(&*spoken);
    NFKC.normalize(&mut composed).expect("this normalizer takes every text");
    SYMBOLS.replace_all(composed.get(), " ").to_lowercase()
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a pattern of this file")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected words are those of transformers 5.17's `BasicTextNormalizer`, and of Qwen3-ASR's processor before it.
    #[test]
    fn words_are_those_of_whisper() {
        for (text, expected) in [
            (
                " Hello,  [noise] World! (laughs) Café ½ déjà-vu don't ﬁn २क्",
                "hello world café 1 2 déjà vu don t fin २क",
            ),
            ("日本、語 <unk>ΟΔΟΣ $5.50 A_b", "日本 語 οδος 5 50 a b"),
            ("(open [half> ()", ""),
            ("language English<asr_text>Hello, you.", "hello you"),
            ("language None<asr_text>", ""),
        ] {
            assert_eq!(words(text, Normalize::Basic).join(" "), expected);
        }
        assert_eq!(words(" Hi,\tyou ", Normalize::None), ["Hi,", "you"]);
        assert_eq!(words("language English<asr_text>Hi", Normalize::None), ["language", "English<asr_text>Hi"]);
        assert_eq!(characters(" A\n b.", Normalize::Basic), ['a', ' ', 'b']);
    }
}
