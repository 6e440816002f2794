//! The keys of a robot policy's `config.json` beside those of a model: lerobot's, with the key `type`.

use serde_json::Value as Json;

use super::fastwam::is_fastwam;
use super::groot::is_groot;

/// Tokens of PaliGemma's vocabulary, which `paligemma_variant` stands for.
const PALIGEMMA: i64 = 257_152;
/// Tokens of SmolVLM2's, which `vlm_model_name` stands for.
const SMOLVLM2: i64 = 49_280;

/// The `type` of SmolVLA.
pub const SMOLVLA: &str = "smolvla";

/// Tokens of BART's vocabulary, which Florence-2 has where its config does not say.
const BART: i64 = 50_265;

/// Returns whether a `config.json` is a robot policy's: as lerobot writes it, or NVIDIA's of GR00T.
pub fn is_policy(config: &Json) -> bool {
    config["model_type"].is_null() && config["type"].is_string() || is_groot(config)
}

/// Tokens of a policy's vocabulary. The last of them stands for a picture's features; no text has it.
pub fn policy_vocabulary(config: &Json) -> i64 {
    if config["type"] == "xvla" {
        // The token behind the last, which has no row in the table.
        return config["florence_config"]["text_config"]["vocab_size"].as_i64().unwrap_or(BART) + 1;
    }
    let published = if config["type"] == SMOLVLA { SMOLVLM2 } else { PALIGEMMA };
    config["sizes"]["vocab_size"].as_i64().unwrap_or(published)
}

/// Returns whether a policy's config freezes the image tower, and the projector behind it, where a run says nothing of them.
pub fn frozen_towers(config: &Json) -> [bool; 2] {
    // lerobot's defaults.
    let says = |key: &str| config[key].as_bool().unwrap_or(config["type"] == SMOLVLA);
    let all = says("train_expert_only");
    [says("freeze_vision_encoder") || all, all]
}

/// Returns whether lerobot's config of a policy has a key `dtype`. lerobot refuses keys that it does not know.
pub fn has_dtype(config: &Json) -> bool {
    config["type"] != SMOLVLA && !is_fastwam(config)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::frozen_towers;

    #[test]
    fn towers_are_frozen_as_in_lerobot() {
        assert_eq!(frozen_towers(&json!({"type": "pi05"})), [false, false]);
        assert_eq!(frozen_towers(&json!({"type": "pi05", "freeze_vision_encoder": true})), [true, false]);
        assert_eq!(frozen_towers(&json!({"type": "pi0", "train_expert_only": true})), [true, true]);
        assert_eq!(frozen_towers(&json!({"type": "smolvla"})), [true, true]);
        assert_eq!(frozen_towers(&json!({"type": "smolvla", "train_expert_only": false})), [true, false]);
        let none = json!({"type": "smolvla", "train_expert_only": false, "freeze_vision_encoder": false});
        assert_eq!(frozen_towers(&none), [false, false]);
    }
}
