//! Mistakes of the user.

use loongforge_core::engine::error_chain;
use std::error::Error;

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
    pub fn of(error: impl Error + 'static) -> Self {
        Self::of_dyn(&error)
    }

    /// Works like [`UsageError::of`] for an error of any type.
    pub fn of_any(error: anyhow::Error) -> Self {
        Self::of_dyn(error.as_ref())
    }

    /// Works like [`UsageError::of`] for an error that is somebody else's.
    pub fn of_dyn(error: &(dyn Error + 'static)) -> Self {
        Self(error_chain(error))
    }
}
