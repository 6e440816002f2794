//! Describes what the `config.json` of a robot policy says beside a model's: lerobot's, with the key `type`.

use serde_json::Value as Json;

/// Tokens of PaliGemma's vocabulary, which `paligemma_variant` stands for.
const PALIGEMMA: i64 = 257_152;

/// Tokens of BART's vocabulary, which Florence-2 has where its config does not say.
const BART: i64 = 50_265;

/// Returns whether a `config.json` is a robot policy's, as lerobot writes it.
pub fn is_policy(config: &Json) -> bool {
    config["model_type"].is_null() && config["type"].is_string()
}

/// Tokens of a policy's vocabulary. The last of them stands for a picture's features; no text has it.
pub fn policy_vocabulary(config: &Json) -> i64 {
    if config["type"] == "xvla" {
        // The token behind the last, which has no row in the table.
        return config["florence_config"]["text_config"]["vocab_size"].as_i64().unwrap_or(BART) + 1;
    }
    config["sizes"]["vocab_size"].as_i64().unwrap_or(PALIGEMMA)
}
