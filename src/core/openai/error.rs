//! The reason why a request is refused, in the form that OpenAI's clients read.

use serde_json::{Value as Json, json};

use crate::data::DataError;

/// Characters of an error of the data readers at most, which may repeat what the request has.
const MAX_REASON: usize = 1000;

/// A request that gets no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// The status of HTTP.
    pub status: u16,
    pub message: String,
    /// The field that is meant.
    pub param: Option<String>,
    pub code: Option<&'static str>,
}

impl ApiError {
    /// Makes an error with an HTTP status and a message.
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None }
    }

    /// Creates the error of a request that is wrong, status 400.
    pub fn bad(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::new(400, message) }
    }

    /// Makes the error of a prompt that cannot be used, in the words of the data readers, for which it is a sample.
    pub fn of_data(param: &str, error: DataError) -> Self {
        let reason = match error {
            DataError::Line(reason) => reason,
            error => error.to_string(),
        };
        match reason.char_indices().nth(MAX_REASON) {
            Some((end, _)) => Self::bad(param, format!("{}…", &reason[..end])),
            None => Self::bad(param, reason),
        }
    }

    /// Creates the error of a request for what this server does not do, status 400; `hint` says what it does.
    pub fn unsupported(param: impl Into<String>, hint: &str) -> Self {
        let param = param.into();
        Self {
            code: Some("unsupported_parameter"),
            ..Self::bad(param.clone(), format!("`{param}` is not supported: {hint}"))
        }
    }

    /// Adds the word by which programs know the error.
    pub fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// Returns `{"error": {…}}`.
    pub fn json(&self) -> Json {
        let kind = match self.status {
            401 => "authentication_error",
            403 => "permission_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}})
    }
}
