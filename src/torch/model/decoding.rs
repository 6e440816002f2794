//! Describes how long continuations get, and how their tokens are chosen.

use super::sampling::Sampling;

/// Describes how long continuations get, and how their tokens are chosen.
#[derive(Clone, Debug, Default)]
pub struct Decoding {
    pub max_new_tokens: usize,
    /// The first of these ends a continuation and is left out.
    pub stop_token_ids: Vec<i64>,
    /// `None`: always the most likely token.
    pub sampling: Option<Sampling>,
    /// Tokens of the prompt and of the continuation so far lose by this factor, above 1; `None`: they do not.
    pub repetition_penalty: Option<f64>,
}

/// Says what has become of a continuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continued {
    /// It has one more token.
    Token(i64),
    /// It has ended with a stop token, which is left out.
    Stopped,
    /// It has as many tokens as it may have.
    Full,
}
