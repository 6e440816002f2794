//! The number of tokens that a model reads and writes at once.

use loongforge_core::data::ModelCard;
use serde_json::Value as Json;

/// The number of tokens that a prompt and its answer may have, by a model's `config.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions {
    /// Tokens of both together, or of each.
    pub most: usize,
    /// True if answers have positions of their own: an encoder reads the prompt, and a decoder writes.
    pub apart: bool,
}

impl Positions {
    /// Reads the lengths that a model's `config.json` names; `None` where it names none.
    pub fn of(config: &Json) -> Option<Positions> {
        match ModelCard::of(config).encoder_decoder() {
            Some(rules) => Some(Positions { most: rules.max_positions, apart: true }),
            None => max_context(config).map(|most| Positions { most, apart: false }),
        }
    }

    /// Returns the number of tokens that are left for the answer to a prompt of `num_tokens`; none where the prompt itself is too long.
    pub fn left(self, num_tokens: usize) -> usize {
        match self.apart && num_tokens <= self.most {
            true => self.most,
            false => self.most.saturating_sub(num_tokens),
        }
    }
}

/// Returns the `max_position_embeddings` of a model's `config.json`, or what YaRN makes of its original length where that is more;
/// `None` where it names none.
fn max_context(config: &Json) -> Option<usize> {
    let length = |keys: &Json| {
        let own = keys["max_position_embeddings"].as_u64().filter(|length| *length > 0)? as usize;
        Some(own.max(stretched(keys, own).unwrap_or(0)))
    };
    ModelCard::of(config).of_text().find_map(length)
}

/// Returns the length for which YaRN is made: recipes add it to a config and leave `max_position_embeddings`, which is `own`.
fn stretched(keys: &Json, own: usize) -> Option<usize> {
    let (kind, section) = scaling(keys)?;
    let factor = section["factor"].as_f64().filter(|_| kind == "yarn")?;
    let key = "original_max_position_embeddings";
    let original = keys[key].as_u64().or(section[key].as_u64()).unwrap_or(own as u64);
    Some((factor * original as f64) as usize)
}

/// Returns how the positions of RoPE are scaled, and the section that says it; `None`: they are not.
fn scaling(keys: &Json) -> Option<(&str, &Json)> {
    let sections = ["rope_scaling", "rope_parameters"].map(|key| &keys[key]);
    let section = sections.into_iter().find(|section| section.as_object().is_some_and(|keys| !keys.is_empty()))?;
    Some((section["rope_type"].as_str().or(section["type"].as_str())?, section))
}

/// Returns how many times as long as `max_position_embeddings` a model's texts may be: `linear` and `dynamic` stretch positions by a
/// factor, and some configs name the length before that, others the one after. 1 where the config is clear.
pub fn possible_stretch(config: &Json) -> f64 {
    let factor = |keys: &Json| {
        let (kind, section) = scaling(keys)?;
        section["factor"].as_f64().filter(|factor| *factor > 1.0 && ["linear", "dynamic"].contains(&kind))
    };
    ModelCard::of(config).of_text().find_map(factor).unwrap_or(1.0)
}

/// A prompt that leaves no room for its answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    #[error("{num_tokens} tokens, which with {max_new_tokens} tokens of an answer exceed the model's {most}")]
    Together { num_tokens: usize, max_new_tokens: usize, most: usize },
    #[error("{num_tokens} tokens, and its answer up to {max_new_tokens}: the model has only {most} positions for each")]
    Apart { num_tokens: usize, max_new_tokens: usize, most: usize },
}

/// Returns how many new tokens an answer may have: those that are `wanted`, else `usual` ones or what the model's length leaves. A model
/// that names no length has room for all.
///
/// # Errors
/// The prompt of `num_tokens` leaves no room for those that are wanted, or for any.
pub fn room(config: &Json, num_tokens: usize, wanted: Option<usize>, usual: usize) -> Result<usize, NoRoom> {
    let Some(positions) = Positions::of(config) else { return Ok(wanted.unwrap_or(usual)) };
    let (left, most) = (positions.left(num_tokens), positions.most);
    let max_new_tokens = wanted.unwrap_or(usual.min(left.max(1)));
    match positions.apart {
        _ if max_new_tokens <= left => Ok(max_new_tokens),
        true => Err(NoRoom::Apart { num_tokens, max_new_tokens, most }),
        false => Err(NoRoom::Together { num_tokens, max_new_tokens, most }),
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
        assert_eq!(told, "10 tokens, which with 503 tokens of an answer exceed the model's 512");
    }

    #[test]
    fn an_answer_of_a_decoder_behind_an_encoder_has_positions_of_its_own() {
        let config = json!({"model_type": "florence2", "text_config": {"max_position_embeddings": 64}});
        for (num_tokens, wanted, expected) in [
            (60, None, Some(64)),
            (64, Some(64), Some(64)),
            (10, Some(65), None),
            (65, None, None),
            (65, Some(1), None),
        ] {
            assert_eq!(room(&config, num_tokens, wanted, 128).ok(), expected, "{num_tokens} {wanted:?}");
        }
        let told = room(&config, 10, Some(65), 128).unwrap_err().to_string();
        assert_eq!(told, "10 tokens, and its answer up to 65: the model has only 64 positions for each");
    }

    #[test]
    fn the_language_models_own_length_is_found() {
        assert_eq!(max_context(&json!({"max_position_embeddings": 512})), Some(512));
        let omni = json!({"vision_config": {"max_position_embeddings": 3},
            "thinker_config": {"text_config": {"max_position_embeddings": 99}}});
        assert_eq!(max_context(&omni), Some(99));
        assert_eq!(max_context(&json!({"max_position_embeddings": 0, "x": 1})), None);
    }

    #[test]
    fn yarn_makes_the_length_longer_than_the_config_says() {
        let of = |key: &str, section: Json| max_context(&json!({"max_position_embeddings": 100, key: section}));
        let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 80});
        assert_eq!(of("rope_scaling", yarn.clone()), Some(320));
        assert_eq!(of("rope_parameters", yarn), Some(320));
        assert_eq!(of("rope_scaling", json!({"type": "yarn", "factor": 2})), Some(200));
        // The config already names the longer one.
        let known = json!({"type": "yarn", "factor": 4, "original_max_position_embeddings": 25});
        assert_eq!(of("rope_scaling", known), Some(100));
        assert_eq!(of("rope_scaling", json!({"rope_type": "linear", "factor": 4})), Some(100));
    }

    #[test]
    fn a_stretch_that_the_length_may_or_may_not_contain_is_known() {
        let of = |kind: &str, factor: f64| {
            let section = json!({"rope_type": kind, "factor": factor});
            possible_stretch(&json!({"max_position_embeddings": 100, "rope_scaling": section}))
        };
        assert_eq!([of("linear", 4.0), of("dynamic", 2.0)], [4.0, 2.0]);
        assert_eq!([of("linear", 0.5), of("yarn", 4.0), of("llama3", 8.0)], [1.0; 3]);
        assert_eq!(possible_stretch(&json!({"max_position_embeddings": 100})), 1.0);
    }
}
