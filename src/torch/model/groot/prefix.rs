//! The language model of a policy, with the tower of pictures in it, as a tower of its own: it makes a feature of each token of a sample,
//! the state that actions see. The foundation is what is left.

use std::sync::Arc;

use loongforge_core::message::{Grid, Tower};

use super::backbone;
use super::config::{GrootConfig, of_part};
use crate::model::encoder::{EncoderFamily, EncoderModel};
use crate::model::text::{Pictures, TextConfig, TextTowerConfig};
use crate::model::towers::{FeatureInput, ModelTower, Towers};
use crate::model::vision::VisionConfig;
use crate::params::{ParamSpec, ParamStore};
use crate::tape::Policy;

/// The tower as data. Parameters have the names that they have in the foundation.
#[derive(Clone, Debug)]
struct PrefixTower {
    /// The prefix of the names of all parameters.
    prefix: String,
    states: TextConfig,
    /// Those of the foundation, also such as nothing reads.
    specs: Vec<ParamSpec>,
}

/// Returns the policy without its language model, and this as a tower; `None`: the tower of pictures among `towers` is of an unknown
/// kind, or there is none.
pub(super) fn split(config: &GrootConfig, towers: &Towers) -> Option<(GrootConfig, ModelTower)> {
    let pictures = Pictures {
        tower: towers.get(Tower::Vision)?.as_any()?.downcast_ref::<VisionConfig>()?.clone(),
        placeholder: *config.input.placeholders.first()?,
    };
    let mut specs = backbone::specs(config);
    specs.extend(of_part(config.tuned.visual, pictures.tower.specs()));
    let states = TextConfig {
        layers: vec![config.backbone.num_layers()],
        tower: TextTowerConfig::Decoder(config.backbone.clone()),
        normed: config.last_norm,
        drop_tokens: 0,
        pictures: Some(pictures),
        projector: None,
    };
    let family = Arc::new(PrefixTower { prefix: config.backbone_prefix(), states, specs });
    let tower = ModelTower { tower: Tower::Text, family, placeholders: Vec::new() };
    Some((GrootConfig { split: true, ..config.clone() }, tower))
}

/// Returns what a policy takes of the tower: the states of all tokens, in their order.
pub(super) fn states_input(config: &GrootConfig) -> FeatureInput {
    let width = config.backbone.hidden_size;
    FeatureInput { tower: Tower::Text, num_tensors: 1, width, placeholders: Vec::new() }
}

impl EncoderFamily for PrefixTower {
    fn specs(&self) -> Vec<ParamSpec> {
        self.specs.clone()
    }

    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn EncoderModel> {
        self.states.build(params, policy)
    }

    fn patch_dim(&self) -> i64 {
        self.states.patch_dim()
    }

    fn prefixes(&self) -> [&str; 2] {
        [&self.prefix, ""]
    }

    fn num_features(&self, grid: Grid) -> usize {
        self.states.num_features(grid)
    }
}

#[cfg(test)]
#[path = "prefix_tests.rs"]
mod tests;
