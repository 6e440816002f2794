//! Reads what a `config.json` says of a model: where its parts are, which tokens features replace, how it counts positions and
//! which processors it was trained with. Every package asks here; what a model computes is read in `loongforge-torch`.

mod components;
mod encoder_decoder;
mod fastwam;
mod groot;
mod own;
mod policies;
mod rows;
mod section;
mod texts;

use serde_json::Value as Json;

pub use components::{COMPONENTS, Component, DIFFUSION, MODEL_INDEX, is_diffusion};
pub use encoder_decoder::EncoderDecoder;
pub(super) use encoder_decoder::dropped;
pub use fastwam::{FASTWAM, fastwam_networks, is_fastwam};
pub use groot::{GrootVersion, groot_backbone, groot_keys, is_groot};
pub use own::{OwnTower, register_towers};
pub use policies::{SMOLVLA, frozen_towers, has_dtype, is_policy, policy_vocabulary};
pub use rows::VisionCut;
pub use section::Section;
pub use texts::Edits;

use self::own::row_of;
use self::rows::Row;
use super::audio::AudioFamily;
use super::positions::PositionKind;
use crate::config::ModelKind;
use crate::message::Tower;

/// The card of one model. It borrows the `config.json`, and looks again at every question.
#[derive(Clone, Copy)]
pub struct ModelCard<'a> {
    config: &'a Json,
}

impl<'a> ModelCard<'a> {
    /// Returns the card of a parsed `config.json`: a model's, or one of its parts'.
    pub fn of(config: &'a Json) -> Self {
        Self { config }
    }

    /// Returns whether the model predicts tokens, the noise of pictures, or actions of robots.
    pub fn kind(self) -> ModelKind {
        match is_diffusion(self.config) {
            true => ModelKind::Diffusion { two: self.config["transformer_2"].is_object() },
            false if policies::is_policy(self.config) => ModelKind::Policy,
            false => ModelKind::Tokens,
        }
    }

    /// Returns the part of a model that reads and writes text: all of it, but for the Omni models, which have another part that speaks.
    pub fn thinker(self) -> &'a Json {
        self.section(Section::Thinker).unwrap_or(self.config)
    }

    /// Returns the language model: a section, or the whole.
    pub fn text(self) -> &'a Json {
        self.section(Section::Text).unwrap_or_else(|| self.thinker())
    }

    /// Returns the vision tower; `None` of a model that sees nothing.
    pub fn vision(self) -> Option<&'a Json> {
        self.section(Section::Vision)
    }

    /// Returns the audio tower; `None` of a model that hears nothing.
    pub fn audio(self) -> Option<&'a Json> {
        self.section(Section::Audio)
    }

    /// Returns the text tower; `None` of a model whose texts are all the language model's.
    pub fn text_tower(self) -> Option<&'a Json> {
        self.section(Section::TextTower)
    }

    /// Returns the defaults of the section `text`: the template around a text, the tokens of it that have no features, and the tokens at
    /// most. `None`: the text is read as it is.
    pub fn text_defaults(self) -> Option<Json> {
        texts::of_pipeline(self.config)
    }

    /// Returns how the text tower of a diffusion model is shown the pictures that are edited; `None` where it sees none.
    pub fn edits(self) -> Option<Edits> {
        texts::edits(self.config)
    }

    /// Returns a section of the config, where it has one.
    pub fn section(self, section: Section) -> Option<&'a Json> {
        self.config.pointer(&section.place(self.config)?)
    }

    /// Returns the config itself and those of its sections that may say something of the language model, from the outside in.
    pub fn of_text(self) -> impl Iterator<Item = &'a Json> {
        Section::places_of_text(self.config).into_iter().filter_map(|place| self.config.pointer(&place))
    }

    /// Returns the id that the config gives the token that features of `tower` replace.
    pub fn placeholder(self, tower: Tower) -> Option<i64> {
        if is_groot(self.config) {
            let backbone = groot_backbone(self.config);
            let id = Section::placeholder_keys(tower).iter().filter_map(|key| backbone[*key].as_i64()).next();
            return id.filter(|_| tower == Tower::Vision);
        }
        if is_policy(self.config) && !is_fastwam(self.config) {
            return (tower == Tower::Vision).then(|| policy_vocabulary(self.config) - 1);
        }
        let has_tower = match tower {
            Tower::Vision => true,
            Tower::Audio => self.audio().is_some(),
            Tower::Text => self.text_tower().is_some(),
            Tower::Vae | Tower::Reference => false,
        };
        let keys = Section::placeholder_keys(tower).iter().filter(|_| has_tower);
        keys.filter_map(|key| self.thinker()[*key].as_i64()).next()
    }

    /// Returns how positions are counted: with three axes where RoPE has sections for them, or the family always has.
    pub fn positions(self) -> PositionKind {
        // Its decoder is one that counts on three axes elsewhere.
        if self.thinker()["model_type"] == "minicpmv4_6" {
            return PositionKind::Sequential;
        }
        let text = self.text();
        let has_sections = ["rope_parameters", "rope_scaling"].iter().any(|key| !text[key]["mrope_section"].is_null());
        let own = text["model_type"].as_str().or(self.config["model_type"].as_str());
        let row = own.and_then(row_of);
        match has_sections || row.is_some_and(|row| row.three_axes) {
            true => PositionKind::Multimodal,
            false => PositionKind::Sequential,
        }
    }

    /// Returns how pictures are cut. A model put together from parts is cut as its tower was trained.
    pub fn vision_cut(self) -> Option<VisionCut> {
        // Their towers are SigLIP's, which other models cut pictures for in other manners.
        let of_model = self.config["model_type"].as_str().and_then(|name| row_of(name)?.vision);
        let is_of_class = |cut: &VisionCut| matches!(cut, VisionCut::Gemma3 | VisionCut::PaliGemma);
        let cut = of_model.filter(is_of_class).or_else(|| self.by_tower(self.vision(), |row| row.vision));
        // A Gemma 3 of text has the same row.
        cut.filter(|cut| self.vision().is_some() || !is_of_class(cut))
    }

    /// Returns whether the model's prompts see all of themselves: pictures come before what is learned.
    pub fn has_prefixes(self) -> bool {
        self.config["model_type"] == "paligemma"
    }

    /// Returns the rules of samples where a prompt is read by an encoder and the answer by a decoder.
    pub fn encoder_decoder(self) -> Option<EncoderDecoder> {
        EncoderDecoder::of(self.config)
    }

    /// Says which rates of dropout in the config training does not apply, of a model that is not refused for them.
    pub fn note(self) -> Option<String> {
        // Published folders of InternVL have the stochastic depth that they were trained with.
        let tower = self.vision().filter(|tower| tower["model_type"] == "intern_vit_6b");
        match tower.and_then(|tower| dropped(tower, &Json::Null)) {
            Some(rates) => Some(format!("the model is trained without {rates} of its config.json")),
            None => self.encoder_decoder()?.note,
        }
    }

    /// Returns how sound is cut into frames.
    pub fn audio_family(self) -> Option<AudioFamily> {
        self.by_tower(self.audio(), |row| row.audio)
    }

    fn by_tower<T>(self, tower: Option<&Json>, of_row: fn(&Row) -> Option<T>) -> Option<T> {
        let types = [tower, Some(self.thinker()), Some(self.config)];
        types.into_iter().flatten().find_map(|config| of_row(row_of(config["model_type"].as_str()?)?))
    }
}

#[cfg(test)]
mod tests;
