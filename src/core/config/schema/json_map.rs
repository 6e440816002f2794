//! Keys as a file of JSON has them.

/// Keys of a `config.json`.
pub type JsonMap = serde_json::Map<String, serde_json::Value>;
