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
}
