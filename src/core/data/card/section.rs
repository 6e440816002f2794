//! The places of a model's parts in its `config.json`: families, and models put together from parts, lay it out differently.

use serde_json::Value as Json;

use crate::message::Tower;

/// A part of a model that has an object of its own in `config.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    Thinker,
    Text,
    Vision,
    VisionProjector,
    Audio,
    AudioProjector,
    TextTower,
    TextProjector,
    Vae,
}

impl Section {
    /// Returns the section of a part of `model`, by its name there: `image_encoder`, with or without `model.` before it.
    pub fn of_part(part: &str) -> Section {
        match part.strip_prefix("model.").unwrap_or(part) {
            "image_encoder" => Section::Vision,
            "image_projector" => Section::VisionProjector,
            "audio_encoder" => Section::Audio,
            "audio_projector" => Section::AudioProjector,
            "text_encoder" => Section::TextTower,
            "text_projector" => Section::TextProjector,
            "vae" => Section::Vae,
            _ => Section::Text,
        }
    }

    fn keys(self) -> &'static [&'static str] {
        match self {
            Section::Thinker => &["thinker_config"],
            Section::Text => &["text_config", "llm_config", "foundation", "transformer"],
            Section::Vision => &["vision_config", "image_encoder"],
            Section::VisionProjector => &["image_projector"],
            Section::Audio => &["audio_config", "audio_encoder"],
            Section::AudioProjector => &["audio_projector"],
            Section::TextTower => &["text_encoder"],
            Section::TextProjector => &["text_projector"],
            Section::Vae => &["vae"],
        }
    }

    /// Returns the JSON pointer of the section in `config`; `None` where it has none.
    pub fn place(self, config: &Json) -> Option<String> {
        let within = |holder: &str| {
            let holds = |key: &&&str| config.pointer(&format!("{holder}/{key}")).is_some_and(Json::is_object);
            self.keys().iter().find(holds).map(|key| format!("{holder}/{key}"))
        };
        let thinker = || if self == Section::Thinker { None } else { Section::Thinker.place(config) };
        within("").or_else(|| within(&thinker()?))
    }

    /// Returns the JSON pointers of the config itself and of those of its sections that may say something of the language model.
    pub fn places_of_text(config: &Json) -> Vec<String> {
        let sections = [Section::Thinker, Section::Text].into_iter().filter_map(|section| section.place(config));
        [String::new()].into_iter().chain(sections).collect()
    }

    /// Returns the keys under which configs give the id of the token that features of `tower` replace.
    pub(super) fn placeholder_keys(tower: Tower) -> &'static [&'static str] {
        match tower {
            Tower::Vision => &[
                "image_token_id",
                "media_placeholder_token_id",
                "im_patch_id",
                "image_token_index",
                "img_context_token_id",
            ],
            Tower::Audio => &["audio_token_id", "audio_token_index"],
            Tower::Text => &["text_token_id"],
            // No token stands for a latent or for an answer.
            Tower::Vae | Tower::Reference => &[],
        }
    }
}
