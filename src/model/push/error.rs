//! Describes why a push fails.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum PushError {
    #[error("{id} is not an id of the hub: it must have the form ORG/NAME; name a branch with --revision")]
    Id { id: String },
    #[error("pushing to {endpoint} needs a token that may write: set HF_TOKEN, or log in with `hf auth login`")]
    NoToken { endpoint: String },
    #[error("HF_HUB_OFFLINE is set: nothing is sent")]
    Offline,
    #[error("{folder} holds no model: no config.json, adapter_config.json, model_index.json or GGUF file")]
    NoModel { folder: PathBuf },
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{what}: the hub answered {status}: {reason}")]
    Refused { what: String, status: u16, reason: String },
    #[error("{what}: {reason}")]
    Network { what: String, reason: String },
    #[error("{what}: the hub's answer is invalid: {reason}")]
    Answer { what: String, reason: String },
}
