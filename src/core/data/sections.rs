//! Describes where a `config.json` has what samples depend on: families and models put together from parts lay it out
//! differently.

use serde_json::Value as Json;

/// The vision tower; null for a text model.
pub fn vision(config: &Json) -> &Json {
    first(config, &["vision_config", "image_encoder"]).unwrap_or(&Json::Null)
}

/// The audio tower; null for a model that hears nothing.
pub fn audio(config: &Json) -> &Json {
    first(config, &["audio_config", "audio_encoder"]).unwrap_or(&Json::Null)
}

/// The part of a model that reads and writes text: all of it, but for the Omni models, which have another part that speaks.
pub fn thinker(config: &Json) -> &Json {
    first(config, &["thinker_config"]).unwrap_or(config)
}

/// The language model: a section, or the whole.
pub fn text(config: &Json) -> &Json {
    first(config, &["text_config", "llm_config", "foundation"]).unwrap_or(config)
}

fn first<'a>(config: &'a Json, keys: &[&str]) -> Option<&'a Json> {
    keys.iter().map(|key| &config[*key]).find(|section| section.is_object())
}
