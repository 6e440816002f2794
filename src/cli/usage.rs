//! Mistakes of the user.

use loongforge_core::engine::error_chain;

/// Something that the user has to change before a second try makes sense.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub(super) String);

impl UsageError {
    /// Makes the error of a command that was used wrongly, for this reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }

    /// Wraps an error with its causes.
    pub fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        Self(error_chain(error))
    }
}
