//! How many tokens a model reads and writes at once.

use loongforge_core::data::ModelCard;
use serde_json::Value as Json;

/// Returns the `max_position_embeddings` of a model's `config.json`; `None` where it names none.
pub fn max_context(config: &Json) -> Option<usize> {
    let lengths = ModelCard::of(config).of_text().filter_map(|keys| keys["max_position_embeddings"].as_u64());
    lengths.map(|length| length as usize).find(|length| *length > 0)
}

/// A prompt that leaves no room for its answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{num_tokens} tokens, and with {max_new_tokens} of an answer that is more than the model's {most}")]
pub struct NoRoom {
    num_tokens: usize,
    max_new_tokens: usize,
    most: usize,
}

/// How many new tokens an answer may have: those that are `wanted`, else `usual` ones or what the model's length leaves. A model that
/// names no length has room for all.
///
/// # Errors
/// The prompt of `num_tokens` leaves no room for those that are wanted, or for any.
pub fn room(config: &Json, num_tokens: usize, wanted: Option<usize>, usual: usize) -> Result<usize, NoRoom> {
    let Some(most) = max_context(config) else { return Ok(wanted.unwrap_or(usual)) };
    let left = most.saturating_sub(num_tokens);
    let max_new_tokens = wanted.unwrap_or(usual.min(left.max(1)));
    match max_new_tokens <= left {
        true => Ok(max_new_tokens),
        false => Err(NoRoom { num_tokens, max_new_tokens, most }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_answer_fits_behind_its_prompt() {
        let config = json!({"max_position_embeddings": 512});
        for (num_tokens, wanted, expected) in [
            (10, None, Some(128)),
            (500, None, Some(12)),
            (512, None, None),
            (513, None, None),
            (10, Some(502), Some(502)),
            (10, Some(503), None),
            (10, Some(usize::MAX), None),
        ] {
            assert_eq!(room(&config, num_tokens, wanted, 128).ok(), expected, "{num_tokens} {wanted:?}");
        }
        assert_eq!(room(&json!({}), 10, None, 128), Ok(128));
        let told = room(&config, 10, Some(503), 128).unwrap_err().to_string();
        assert_eq!(told, "10 tokens, and with 503 of an answer that is more than the model's 512");
    }

    #[test]
    fn the_language_models_own_length_is_found() {
        assert_eq!(max_context(&json!({"max_position_embeddings": 512})), Some(512));
        let omni = json!({"vision_config": {"max_position_embeddings": 3},
            "thinker_config": {"text_config": {"max_position_embeddings": 99}}});
        assert_eq!(max_context(&omni), Some(99));
        assert_eq!(max_context(&json!({"max_position_embeddings": 0, "x": 1})), None);
    }
}
