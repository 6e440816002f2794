//! The two pools of a model, each of its family.

use crate::model::{DecoderFamily, FoundationFamily, ModelConfig, Towers, TreeNames};
use crate::params::ParamSpec;
use std::sync::Arc;

/// The two pools of a model; a language model has no towers.
#[derive(Clone)]
pub struct Families {
    pub towers: Towers,
    pub foundation: Arc<dyn FoundationFamily>,
    /// Holds what PEFT calls their modules.
    pub tree: TreeNames,
}

impl Families {
    /// The built-in families that a `config.json` describes.
    pub fn of(model: &ModelConfig) -> Self {
        let foundation = DecoderFamily::new(model.decoder.clone(), model.inputs());
        Self { towers: model.towers.clone(), foundation: Arc::new(foundation), tree: model.tree.clone() }
    }

    /// All parameters of the model.
    pub fn specs(&self) -> Vec<ParamSpec> {
        let mut specs = self.foundation.specs();
        specs.extend(self.towers.specs());
        specs
    }
}
