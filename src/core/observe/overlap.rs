//! BLEU and ROUGE: how many words, and runs of words, answers have in common with what is expected.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;
use serde::{Deserialize, Serialize};

/// BLEU counts runs of up to so many words.
const ORDERS: usize = 4;

/// BLEU-4 of a set (Papineni et al., 2002), as sacrebleu computes it of a corpus with one reference each: the geometric mean of the
/// precisions of runs of 1 to 4 words, summed over all answers, times a penalty where the answers are shorter than what is expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bleu {
    /// The score, from 0 to 1.
    pub score: f64,
    /// The number of the answers' runs of 1, 2, 3 and 4 words that are expected ones; none counts more often than it is expected.
    pub common: [u64; ORDERS],
    /// The number of the answers' runs.
    pub runs: [u64; ORDERS],
    /// Words of the answers, and those that are expected.
    pub words: u64,
    pub expected_words: u64,
}

/// Means of the answers' ROUGE (Lin, 2004), each the F-measure of precision and recall, from 0 to 1, as in Google's `rouge_score`
/// without a stemmer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rouge {
    /// The mean F-measure of single words.
    pub rouge1: f64,
    /// The mean F-measure of runs of two words.
    pub rouge2: f64,
    /// The mean F-measure of the longest common subsequence of words.
    #[serde(rename = "rougeL")]
    pub rouge_l: f64,
}

impl Bleu {
    /// Returns the score of pairs of what is expected and an answer.
    pub fn of<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut found = Self::default();
        for (expected, answer) in pairs {
            let (expected, answer) = (words_of_bleu(expected), words_of_bleu(answer));
            found.words += answer.len() as u64;
            found.expected_words += expected.len() as u64;
            for order in 0..ORDERS {
                found.common[order] += num_common(&expected, &answer, order + 1);
                found.runs[order] += num_runs(&answer, order + 1);
            }
        }
        Self { score: found.product(), ..found }
    }

    /// Returns the precisions of runs of 1 to 4 words. One without a common run is half of 1 / runs, the next a quarter, and so on, which
    /// is sacrebleu's smoothing `exp` (NIST's `mteval-v13a.pl`).
    pub fn precisions(&self) -> [f64; ORDERS] {
        let mut part = 1.0;
        let mut precisions = [0.0; ORDERS];
        for (precision, (common, runs)) in precisions.iter_mut().zip(self.common.iter().zip(self.runs)) {
            *precision = match (*common, runs) {
                (_, 0) => 0.0,
                (0, runs) => {
                    part /= 2.0;
                    part / runs as f64
                }
                (common, runs) => common as f64 / runs as f64,
            };
        }
        precisions
    }

    fn product(&self) -> f64 {
        let precisions = self.precisions();
        // Without a word in common there is nothing to smooth.
        if self.common[0] == 0 || precisions.contains(&0.0) {
            return 0.0;
        }
        let shortness = (1.0 - self.expected_words as f64 / self.words as f64).min(0.0);
        let mean = precisions.iter().map(|precision| precision.ln()).sum::<f64>() / ORDERS as f64;
        (shortness + mean).exp()
    }

    /// Returns the part of a line about the score.
    pub(super) fn text(&self) -> String {
        let (score, words, expected) = (100.0 * self.score, self.words, self.expected_words);
        if self.runs[ORDERS - 1] == 0 {
            return format!("BLEU-4 {score:.2} (no answer has {ORDERS} words; {words} words, expected {expected})");
        }
        let precisions = self.precisions().map(|precision| format!("{:.1}", 100.0 * precision)).join(", ");
        format!("BLEU-4 {score:.2} (precisions {precisions} %; {words} words, expected {expected})")
    }
}

impl Rouge {
    /// Returns the means over pairs of what is expected and an answer; of no pairs all are 0.
    pub fn of<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let (mut sum, mut count) = (Self::default(), 0_u64);
        for (expected, answer) in pairs {
            let (expected, answer) = (words_of_rouge(expected), words_of_rouge(answer));
            let of_runs = |length| {
                let (all, made) = (num_runs(&expected, length), num_runs(&answer, length));
                f_measure(num_common(&expected, &answer, length), all, made)
            };
            sum.rouge1 += of_runs(1);
            sum.rouge2 += of_runs(2);
            sum.rouge_l += f_measure(longest_common(&expected, &answer), expected.len() as u64, answer.len() as u64);
            count += 1;
        }
        let mean = |sum: f64| sum / count.max(1) as f64;
        Self { rouge1: mean(sum.rouge1), rouge2: mean(sum.rouge2), rouge_l: mean(sum.rouge_l) }
    }

    /// Returns the part of a line about the scores.
    pub(super) fn text(&self) -> String {
        let [one, two, longest] = [self.rouge1, self.rouge2, self.rouge_l].map(|score| 100.0 * score);
        format!("ROUGE-1 {one:.2}, ROUGE-2 {two:.2}, ROUGE-L {longest:.2}")
    }
}

/// Runs of `length` words in a text.
fn num_runs(words: &[String], length: usize) -> u64 {
    words.windows(length).len() as u64
}

/// Runs of `length` words that both have, each as often as both have it.
fn num_common(expected: &[String], answer: &[String], length: usize) -> u64 {
    let mut left: BTreeMap<&[String], u64> = BTreeMap::new();
    for run in expected.windows(length) {
        *left.entry(run).or_insert(0) += 1;
    }
    let mut common = 0;
    for run in answer.windows(length) {
        if let Some(left) = left.get_mut(run).filter(|left| **left > 0) {
            *left -= 1;
            common += 1;
        }
    }
    common
}

/// Words of the longest sequence that both have in this order, also with others between them.
fn longest_common(expected: &[String], answer: &[String]) -> u64 {
    // Of a part of what is expected and each beginning of the answer.
    let mut row = vec![0_u64; answer.len() + 1];
    for word in expected {
        let mut diagonal = 0;
        for (at, found) in answer.iter().enumerate() {
            let longest = if word == found { diagonal + 1 } else { row[at + 1].max(row[at]) };
            diagonal = std::mem::replace(&mut row[at + 1], longest);
        }
    }
    row[answer.len()]
}

/// Returns the harmonic mean of precision, `common` of `made`, and recall, `common` of `all`; 0 where nothing is common.
fn f_measure(common: u64, all: u64, made: u64) -> f64 {
    if common == 0 { 0.0 } else { 2.0 * common as f64 / (all + made) as f64 }
}

/// Returns the tokens of `mteval-v13a.pl`, which are sacrebleu's `13a`: words with their case, and punctuation apart from them. Each
/// Chinese and Japanese character is a word, with their punctuation and full-width forms, as in sacrebleu's `zh`.
fn words_of_bleu(text: &str) -> Vec<String> {
    static RULES: LazyLock<[(Regex, &str); 4]> = LazyLock::new(|| {
        [
            (r"[ -&(-+/:-@\[-`{-~]", " $0 "),
            // A period or comma within a number stays there.
            (r"([^0-9])([.,])", "$1 $2 "),
            (r"([.,])([^0-9])", " $1 $2"),
            (r"([0-9])(-)", "$1 $2 "),
        ]
        .map(|(pattern, apart)| (Regex::new(pattern).expect("a pattern of this file"), apart))
    });
    let mut text = text.replace("<skipped>", "").replace("-\n", "").replace('\n', " ");
    for (entity, character) in [("&quot;", "\""), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")] {
        text = text.replace(entity, character);
    }
    let mut apart = String::from(" ");
    for character in text.chars() {
        match character {
            character
                if is_unspaced(character) || matches!(character, '\u{3000}'..='\u{303f}' | '\u{ff00}'..='\u{ffef}') =>
            {
                apart.extend([' ', character, ' ']);
            }
            character => apart.push(character),
        }
    }
    apart.push(' ');
    for (pattern, replacement) in RULES.iter() {
        apart = pattern.replace_all(&apart, *replacement).into_owned();
    }
    apart.split_whitespace().map(str::to_owned).collect()
}

/// Runs of `a` to `z` and `0` to `9` in lower case, as in `rouge_score`; each Chinese, Japanese and Korean character is a word, which
/// `rouge_score` leaves out as all others.
fn words_of_rouge(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    for character in text.to_lowercase().chars() {
        if character.is_ascii_alphanumeric() {
            word.push(character);
            continue;
        }
        if !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if is_unspaced(character) || matches!(character, '\u{ac00}'..='\u{d7a3}') {
            words.push(character.to_string());
        }
    }
    words.extend(Some(word).filter(|word| !word.is_empty()));
    words
}

/// Returns whether it is a Chinese character or Japanese kana: texts of them have no spaces between words.
fn is_unspaced(character: char) -> bool {
    matches!(character,
        '\u{3005}'..='\u{3007}'
        | '\u{3041}'..='\u{309f}'
        | '\u{30a1}'..='\u{30fa}'
        | '\u{30fc}'..='\u{30ff}'
        | '\u{3400}'..='\u{4dbf}'
        | '\u{4e00}'..='\u{9fff}'
        | '\u{f900}'..='\u{faff}'
        | '\u{20000}'..='\u{323af}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_near(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-12
    }

    #[test]
    fn words_of_bleu_are_those_of_13a() {
        for (text, expected) in [
            (
                "Hello, world! It's 3.5 (or 1,000) - 10-20 &quot;ok&quot; a/b.",
                "Hello , world ! It's 3.5 ( or 1,000 ) - 10 - 20 \" ok \" a / b .",
            ),
            ("co-\noperate\nA_b [x] {y}~z", "cooperate A _ b [ x ] { y } ~ z"),
            ("今天is好。ok ゲームー", "今 天 is 好 。 ok ゲ ー ム ー"),
            (" ", ""),
        ] {
            assert_eq!(words_of_bleu(text).join(" "), expected);
        }
    }

    /// The expected counts were made by hand from the definition.
    #[test]
    fn bleu_counts_runs_of_all_answers() {
        let (expected, cut) = ("the cat sat on the mat today", "the cat sat on");
        let one = Bleu::of([(expected, "the cat sat on a mat today")]);
        assert_eq!((one.common, one.runs, one.words), ([6, 4, 2, 1], [7, 6, 5, 4], 7));
        // 6/7 · 4/6 · 2/5 · 1/4
        assert!(is_near(one.score, (2.0_f64 / 35.0).powf(0.25)), "{one:?}");
        // Only the penalty: 4 words of 7.
        assert!(is_near(Bleu::of([(expected, cut)]).score, (1.0_f64 - 7.0 / 4.0).exp()));
        let both = Bleu::of([(expected, "the cat sat on a mat today"), (expected, cut)]);
        let product: f64 = 10.0 / 11.0 * 7.0 / 9.0 * 4.0 / 7.0 * 2.0 / 5.0;
        assert!(is_near(both.score, (1.0_f64 - 14.0 / 11.0).exp() * product.powf(0.25)), "{both:?}");
        let text = "BLEU-4 48.27 (precisions 90.9, 77.8, 57.1, 40.0 %; 11 words, expected 14)";
        assert_eq!(both.text(), text);
        // A longer answer has no penalty, and a word counts no more often than it is expected (Papineni's example).
        let often = Bleu::of([("the cat is on the mat", "the the the the the the the")]);
        assert_eq!((often.common, often.runs[0]), ([2, 0, 0, 0], 7));
        assert!(is_near(often.score, (2.0_f64 / 7.0 / 12.0 / 20.0 / 32.0).powf(0.25)), "{often:?}");
    }

    #[test]
    fn bleu_of_nothing_in_common_or_of_short_answers_is_zero() {
        assert_eq!(Bleu::of([("a b c d", "e f g h")]).score, 0.0);
        assert_eq!(Bleu::of([("a b c d", "")]).score, 0.0);
        let short = Bleu::of([("a b", "a b"), ("c", "c")]);
        assert_eq!(short.text(), "BLEU-4 0.00 (no answer has 4 words; 3 words, expected 3)");
        assert_eq!(Bleu::of([("a b c d", "a b c d")]).score, 1.0);
    }

    /// The examples are Lin's: the same runs of two words, and another longest sequence.
    #[test]
    fn rouge_is_the_mean_of_f_measures() {
        let expected = "Police killed the gunman.";
        let same = Rouge::of([(expected, "police KILL the gunman")]);
        assert_eq!((same.rouge1, same.rouge2, same.rouge_l), (0.75, 1.0 / 3.0, 0.75));
        let turned = Rouge::of([(expected, "the gunman kill police")]);
        assert_eq!((turned.rouge1, turned.rouge2, turned.rouge_l), (0.75, 1.0 / 3.0, 0.5));
        // Precision 1 and recall 1/2; of two words 1 and 1/3.
        let part = Rouge::of([("a b c d", "a b")]);
        assert!(is_near(part.rouge1, 2.0 / 3.0) && is_near(part.rouge2, 0.5) && is_near(part.rouge_l, 2.0 / 3.0));
        let mean = Rouge::of([("a b c d", "a b"), ("a", "b"), ("", "")]);
        assert!(is_near(mean.rouge1, 2.0 / 9.0), "{mean:?}");
        assert_eq!(mean.text(), "ROUGE-1 22.22, ROUGE-2 16.67, ROUGE-L 22.22");
        assert_eq!(Rouge::of([]), Rouge::default());
        let json = serde_json::to_value(same).unwrap();
        assert!(json["rougeL"] == 0.75 && serde_json::from_value::<Rouge>(json).unwrap() == same);
    }

    #[test]
    fn words_of_rouge_are_letters_and_digits_and_characters_of_texts_without_spaces() {
        let words = words_of_rouge("The U.S. café's 3.5% 你好,안녕");
        assert_eq!(words, ["the", "u", "s", "caf", "s", "3", "5", "你", "好", "안", "녕"]);
    }
}
