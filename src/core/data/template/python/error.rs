//! The error of a call that Python would not take.

use minijinja::{Error, ErrorKind};

/// Makes the error of a call, as minijinja has it.
pub(super) fn wrong(reason: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}
