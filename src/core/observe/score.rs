//! Scores of generated answers beside how many are correct, and whether they are as expected.

use serde::{Deserialize, Serialize};

use super::error_rate::ErrorRate;
use super::normalize::{characters, words};
use super::overlap::{Bleu, Rouge};
use crate::config::{Eval, Expect, Normalize, Score};

/// A generated answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScoredAnswer {
    /// Text of the last turn before the answer.
    pub prompt: String,
    pub answer: String,
    pub expected: String,
    #[serde(alias = "right")]
    pub correct: bool,
}

/// The text with which a thought before an answer ends.
const END_OF_THOUGHT: &str = "</think>";

impl ScoredAnswer {
    /// Makes an answer, which is correct if it says what is expected.
    pub fn new(prompt: String, answer: String, expected: String) -> Self {
        let correct = without_thought(&answer, &expected) == expected;
        Self { prompt, answer, expected, correct }
    }

    /// Returns the answer without the thought before it; with it if the expected one has a thought too.
    pub fn said(&self) -> &str {
        without_thought(&self.answer, &self.expected)
    }
}

/// Returns `answer` without the thought before it if `expected` has none: templates such as Qwen3's write an empty one
/// before the last answer of a conversation, which the model learns.
pub fn without_thought<'a>(answer: &'a str, expected: &str) -> &'a str {
    match answer.rsplit_once(END_OF_THOUGHT) {
        Some((_, said)) if !expected.contains(END_OF_THOUGHT) => said.trim_start(),
        _ => answer,
    }
}

/// Standard deviations above chance from which on answers are not guessed.
const SIGMAS: f64 = 3.0;

/// Says how the answers of a set are scored.
#[derive(Clone, Debug, Default)]
pub struct Scoring {
    pub scores: Vec<Score>,
    pub normalize: Normalize,
    pub expect: Option<Expect>,
}

impl Scoring {
    /// Reads the scoring that a run's config sets for the set of this name.
    pub fn of(eval: &Eval, set: &str) -> Self {
        Self { scores: eval.scores.clone(), normalize: eval.normalize, expect: eval.expect.get(set).copied() }
    }
}

/// Scores that were asked for; the others are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Scores {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wer: Option<ErrorRate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cer: Option<ErrorRate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bleu: Option<Bleu>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rouge: Option<Rouge>,
    /// The way in which `wer`, `cer` and `words` read texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub normalize: Option<Normalize>,
    /// The number of answers with the correct word, and the number of answers that should have it, for each place of expected words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<[u64; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

/// Says whether as many answers are correct as expected.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub met: bool,
    /// Answers that are correct, whole or at a place.
    #[serde(alias = "right")]
    pub correct: u64,
    pub answers: u64,
    pub expected: Expect,
}

impl Scores {
    /// Scores of a set's answers; none of no answers.
    pub fn of(answers: &[ScoredAnswer], scoring: &Scoring) -> Self {
        if answers.is_empty() {
            return Self::default();
        }
        let has = |score| scoring.scores.contains(&score);
        let how = scoring.normalize;
        let wer =
            || ErrorRate::of(answers.iter().map(|answer| (words(&answer.expected, how), words(answer.said(), how))));
        let cer = || {
            let pair = |answer: &ScoredAnswer| (characters(&answer.expected, how), characters(answer.said(), how));
            ErrorRate::of(answers.iter().map(pair))
        };
        let texts = || answers.iter().map(|answer| (answer.expected.as_str(), answer.said()));
        Self {
            wer: has(Score::Wer).then(wer),
            cer: has(Score::Cer).then(cer),
            bleu: has(Score::Bleu).then(|| Bleu::of(texts())),
            rouge: has(Score::Rouge).then(|| Rouge::of(texts())),
            normalize: scoring.scores.iter().any(|score| score.is_normalized()).then_some(how),
            words: if has(Score::Words) { places(answers, how) } else { Vec::new() },
            verdict: scoring.expect.map(|expected| Verdict::of(answers, how, expected)),
        }
    }

    /// Parts of the line about an evaluation.
    pub(super) fn texts(&self) -> Vec<String> {
        let mut texts = Vec::new();
        let how = self.normalize.unwrap_or_default().name();
        for (name, unit, rate) in [("WER", "words", &self.wer), ("CER", "characters", &self.cer)] {
            let Some(edits) = rate else { continue };
            let rate = edits.rate().map_or("undefined".to_owned(), |rate| format!("{:.2} %", 100.0 * rate));
            texts.push(format!(
                "{name} {rate} of {} {unit} ({} substituted, {} inserted, {} deleted; normalized: {how})",
                edits.reference, edits.substitutions, edits.insertions, edits.deletions
            ));
        }
        texts.extend(self.bleu.as_ref().map(Bleu::text));
        texts.extend(self.rouge.as_ref().map(Rouge::text));
        if !self.words.is_empty() {
            let share = |[correct, all]: &[u64; 2]| format!("{:.1} %", 100.0 * *correct as f64 / *all as f64);
            let places: Vec<String> = self.words.iter().map(share).collect();
            texts.push(format!("correct by place of the word: {}", places.join(", ")));
        }
        texts.extend(self.verdict.as_ref().map(Verdict::text));
        texts
    }
}

/// Counts for each place how many answers have the expected word there, and how many are expected to have one.
fn places(answers: &[ScoredAnswer], how: Normalize) -> Vec<[u64; 2]> {
    let mut places: Vec<[u64; 2]> = Vec::new();
    for answer in answers {
        let (expected, found) = (words(&answer.expected, how), words(answer.said(), how));
        places.resize(places.len().max(expected.len()), [0, 0]);
        for (at, word) in expected.iter().enumerate() {
            places[at][0] += u64::from(found.get(at) == Some(word));
            places[at][1] += 1;
        }
    }
    places
}

impl Verdict {
    fn of(answers: &[ScoredAnswer], how: Normalize, expected: Expect) -> Self {
        let [correct, answers] = match expected.word {
            Some(word) => places(answers, how).get(word - 1).copied().unwrap_or_default(),
            None => [answers.iter().filter(|answer| answer.correct).count() as u64, answers.len() as u64],
        };
        let verdict = Self { met: false, correct, answers, expected };
        let part = correct as f64 / answers as f64;
        let met = match expected {
            Expect { at_least: Some(least), .. } => part >= least,
            Expect { at_most: Some(most), .. } => part <= most,
            Expect { chance: Some(chance), .. } => part <= chance + SIGMAS * verdict.sigma(chance),
            _ => false,
        };
        Self { met: met && answers > 0, ..verdict }
    }

    /// Returns the standard deviation of the part that is correct when every answer is guessed.
    fn sigma(&self, chance: f64) -> f64 {
        (chance * (1.0 - chance) / self.answers as f64).sqrt()
    }

    fn text(&self) -> String {
        let percent = |part: f64| format!("{:.1} %", 100.0 * part);
        let expected = match self.expected {
            Expect { at_least: Some(least), .. } => format!("{} or more", percent(least)),
            Expect { at_most: Some(most), .. } => format!("{} or less", percent(most)),
            Expect { chance: Some(chance), .. } => {
                let sigma = self.sigma(chance);
                let off = (self.correct as f64 / self.answers as f64 - chance) / sigma;
                format!(
                    "chance {}, {} with 3 sigma, is {off:+.1} sigma",
                    percent(chance),
                    percent(chance + SIGMAS * sigma)
                )
            }
            _ => "nothing".to_owned(),
        };
        let of = self.expected.word.map_or(String::new(), |word| {
            let correct = percent(self.correct as f64 / self.answers as f64);
            format!(" of word {word}, which is correct in {correct}")
        });
        format!("expected{of}: {expected}: {}", if self.met { "met" } else { "NOT MET" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(expected: &str, answer: &str) -> ScoredAnswer {
        ScoredAnswer::new(String::new(), answer.to_owned(), expected.to_owned())
    }

    #[test]
    fn scores_that_are_asked_for_are_told() {
        let answers = [answer("7 3", "7 3"), answer("1 2", "1 5"), answer("4 4", "The 4."), answer("9", "")];
        let scoring = Scoring { scores: vec![Score::Wer, Score::Cer, Score::Words], ..Scoring::default() };
        let scores = Scores::of(&answers, &scoring);
        assert_eq!(scores.words, [[2, 4], [2, 3]]);
        assert_eq!(
            scores.texts(),
            [
                "WER 42.86 % of 7 words (2 substituted, 0 inserted, 1 deleted; normalized: basic)",
                "CER 50.00 % of 10 characters (2 substituted, 2 inserted, 1 deleted; normalized: basic)",
                "correct by place of the word: 50.0 %, 66.7 %",
            ]
        );
        assert_eq!(Scores::of(&answers, &Scoring::default()), Scores::default());
        let scores = vec![Score::Rouge, Score::Bleu];
        let scores = Scores::of(&answers, &Scoring { scores, ..Scoring::default() });
        // Of words 1, 1/2, 1/2 and 0, and of runs of two words only the first.
        let bleu = "BLEU-4 0.00 (no answer has 4 words; 7 words, expected 7)";
        assert_eq!(scores.texts(), [bleu, "ROUGE-1 50.00, ROUGE-2 25.00, ROUGE-L 50.00"]);
        assert_eq!(scores.normalize, None);
    }

    #[test]
    fn a_thought_before_an_answer_is_not_scored_unless_one_is_expected() {
        let thought = "<think>\nhm\n</think>\n\n7 3";
        let cases = [
            ("7 3", "7 3", true),
            ("7 3", " 7 3", false),
            ("7 3", "<think>\n\n</think>\n\n7 3", true),
            ("7 3", "hm\n</think>\n\n7 3", true),
            ("7 3", "<think>\n\n</think>\n\n7 4", false),
            ("7 3", "<think>\n7 3", false),
            (thought, thought, true),
            (thought, "7 3", false),
            (thought, "<think>\n</think>\n\n7 3", false),
        ];
        for (expected, given, correct) in cases {
            assert_eq!(answer(expected, given).correct, correct, "{expected:?} {given:?}");
        }
        let answers = [answer("7 3", thought)];
        assert_eq!(answers[0].answer, thought, "it is shown as it is");
        let scores = Scores::of(&answers, &Scoring { scores: vec![Score::Wer, Score::Words], ..Scoring::default() });
        assert_eq!((scores.wer.unwrap().rate(), scores.words), (Some(0.0), vec![[1, 1], [1, 1]]));
    }

    #[test]
    fn what_is_expected_is_judged() {
        let answers: Vec<ScoredAnswer> =
            (0..100).map(|at| answer("7 3", if at < 40 { "7 3" } else { "7 4" })).collect();
        let of = |expect| Scores::of(&answers, &Scoring { expect: Some(expect), ..Scoring::default() }).texts();
        let least = Expect { at_least: Some(0.4), ..Expect::default() };
        assert_eq!(of(least), ["expected: 40.0 % or more: met"]);
        assert_eq!(of(Expect { at_least: Some(0.41), ..least }), ["expected: 41.0 % or more: NOT MET"]);
        let most = Expect { at_most: Some(0.39), ..Expect::default() };
        assert_eq!(of(most), ["expected: 39.0 % or less: NOT MET"]);
        let chance = |chance| Expect { chance: Some(chance), ..Expect::default() };
        assert_eq!(of(chance(0.25)), ["expected: chance 25.0 %, 38.0 % with 3 sigma, is +3.5 sigma: NOT MET"]);
        assert_eq!(of(chance(0.5)), ["expected: chance 50.0 %, 65.0 % with 3 sigma, is -2.0 sigma: met"]);
        let first = Expect { word: Some(1), ..least };
        assert_eq!(of(first), ["expected of word 1, which is correct in 100.0 %: 40.0 % or more: met"]);
        assert_eq!(of(Expect { word: Some(9), ..least })[0].split(": ").last(), Some("NOT MET"));
        assert_eq!(Scores::of(&[], &Scoring { expect: Some(least), ..Scoring::default() }), Scores::default());
    }
}
