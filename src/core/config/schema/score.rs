//! Describes how generated answers are scored, and what is expected of their scores.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A score of generated answers, beside how many of them are exactly the expected ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Score {
    // Word error rate.
    Wer,
    // Character error rate.
    Cer,
    // How many answers have the correct word at each place of the expected answer.
    Words,
}

/// Describes what becomes of answers before words and characters are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Normalize {
    // Whisper's basic rules: lower case, without what is in brackets, without punctuation and symbols.
    #[default]
    Basic,
    // Nothing but that words are what stands between white space.
    None,
}

impl Score {
    /// The word that a config has for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wer => "wer",
            Self::Cer => "cer",
            Self::Words => "words",
        }
    }
}

impl Normalize {
    /// The word that a config has for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Basic => "basic",
            Self::None => "none",
        }
    }
}

/// The part of a set's answers that is expected to be correct: `at_least`, `at_most` or `chance`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(inline)]
pub struct Expect {
    /// This part or more.
    pub at_least: Option<f64>,
    /// This part or less.
    pub at_most: Option<f64>,
    /// No more than guessing, which is correct with this probability: three standard deviations above it at most.
    pub chance: Option<f64>,
    /// Answers count as correct whose word at this place is correct, 1 being the first; `null`: whole answers.
    pub word: Option<usize>,
}
