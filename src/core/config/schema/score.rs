//! The keys of the scores of generated answers, and of the scores that are expected.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A score of generated answers, in addition to exact match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Score {
    // Word error rate.
    Wer,
    // Character error rate.
    Cer,
    // BLEU-4 over all answers.
    Bleu,
    // Means of ROUGE-1, ROUGE-2 and ROUGE-L.
    Rouge,
    // Number of answers with the correct word at each position of the expected answer.
    Words,
}

/// Normalization of answers before words and characters are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Normalize {
    // Whisper's basic rules: lower case, without text in brackets, punctuation and symbols.
    #[default]
    Basic,
    // No normalization; words are separated by white space.
    None,
}

impl Score {
    /// Returns its name in a config.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wer => "wer",
            Self::Cer => "cer",
            Self::Bleu => "bleu",
            Self::Rouge => "rouge",
            Self::Words => "words",
        }
    }

    /// Returns whether answers are normalized for it; BLEU and ROUGE have their own words.
    pub fn is_normalized(self) -> bool {
        !matches!(self, Self::Bleu | Self::Rouge)
    }
}

impl Normalize {
    /// Returns its name in a config.
    pub fn name(self) -> &'static str {
        match self {
            Self::Basic => "basic",
            Self::None => "none",
        }
    }
}

/// Expected fraction of a set's answers that are correct: `at_least`, `at_most` or `chance`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(inline)]
pub struct Expect {
    /// This fraction or more.
    pub at_least: Option<f64>,
    /// This fraction or less.
    pub at_most: Option<f64>,
    /// No better than guessing with this probability of being correct: at most three standard deviations above it.
    pub chance: Option<f64>,
    /// Count answers as correct if the word at this position is correct, 1 being the first; `null`: whole answers.
    pub word: Option<usize>,
}
