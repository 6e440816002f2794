//! How many tokens a model reads and writes at once.

use loongforge_core::data::ModelCard;
use serde_json::Value as Json;

/// Returns the `max_position_embeddings` of a model's `config.json`; `None` where it names none.
pub fn max_context(config: &Json) -> Option<usize> {
    let lengths = ModelCard::of(config).of_text().filter_map(|keys| keys["max_position_embeddings"].as_u64());
    lengths.map(|length| length as usize).find(|length| *length > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_language_models_own_length_is_found() {
        assert_eq!(max_context(&json!({"max_position_embeddings": 512})), Some(512));
        let omni = json!({"vision_config": {"max_position_embeddings": 3},
            "thinker_config": {"text_config": {"max_position_embeddings": 99}}});
        assert_eq!(max_context(&omni), Some(99));
        assert_eq!(max_context(&json!({"max_position_embeddings": 0, "x": 1})), None);
    }
}
