//! How many tokens a model reads and writes at once.

use serde_json::Value as Json;

const KEY: &str = "max_position_embeddings";
/// Sections in which a `config.json` may describe its language model.
const SECTIONS: [&str; 5] = ["text_config", "llm_config", "language_config", "thinker_config", "foundation"];

/// Returns the `max_position_embeddings` of a model's `config.json`; `None` where it names none.
pub fn max_context(config: &Json) -> Option<usize> {
    let own = config.get(KEY).and_then(Json::as_u64).filter(|length| *length > 0);
    let inner = || SECTIONS.iter().find_map(|section| max_context(config.get(section)?));
    own.map(|length| length as usize).or_else(inner)
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
