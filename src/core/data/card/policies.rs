//! Describes what the `config.json` of a robot policy says beside a model's: lerobot's, with the key `type`.

use serde_json::Value as Json;

use super::groot::is_groot;

/// Tokens of PaliGemma's vocabulary, which `paligemma_variant` stands for.
const PALIGEMMA: i64 = 257_152;

/// Returns whether a `config.json` is a robot policy's: as lerobot writes it, or NVIDIA's of GR00T.
pub fn is_policy(config: &Json) -> bool {
    config["model_type"].is_null() && config["type"].is_string() || is_groot(config)
}

/// Tokens of a policy's vocabulary. The last of them stands for a picture's features; no text has it.
pub fn policy_vocabulary(config: &Json) -> i64 {
    config["sizes"]["vocab_size"].as_i64().unwrap_or(PALIGEMMA)
}
