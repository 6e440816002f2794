//! Keys as in a JSON file.

/// Keys of a `config.json`.
pub type JsonMap = serde_json::Map<String, serde_json::Value>;
