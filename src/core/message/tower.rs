//! The towers of a model, by modality.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A tower: an encoder that turns one modality into features for the foundation. A model has at most one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Tower {
    // Takes patches of pictures and videos.
    Vision,
    // Takes frames of mel spectrograms.
    Audio,
    // Takes tokens of texts that are not the foundation's.
    Text,
    // Takes the values of pictures and clips, and makes latents of them.
    Vae,
    // Takes answers, and says how likely the model is to give them that a preference is compared with.
    Reference,
}

impl Tower {
    pub const ALL: [Self; 5] = [Self::Vision, Self::Audio, Self::Text, Self::Vae, Self::Reference];

    /// Returns its name in configs, reports and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vision => "vision",
            Self::Audio => "audio",
            Self::Text => "text",
            Self::Vae => "vae",
            Self::Reference => "reference",
        }
    }

    /// Returns the plural noun for the rows of an item.
    pub fn rows(self) -> &'static str {
        match self {
            Self::Vision => "patches",
            Self::Audio => "frames",
            Self::Text => "tokens",
            Self::Vae => "pixels",
            Self::Reference => "values",
        }
    }
}

/// A part of a tower, which has keys of its own in a config.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TowerPart {
    Encoder,
    /// Maps what the encoder makes to features as wide as the foundation expects.
    Projector,
}

impl TowerPart {
    pub const ALL: [Self; 2] = [Self::Encoder, Self::Projector];
}

/// A set of towers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TowerSet(u8);

impl TowerSet {
    /// Returns whether the tower is in the set.
    pub fn contains(self, tower: Tower) -> bool {
        self.0 & (1 << tower as u8) != 0
    }

    /// Returns whether there is no tower in the set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Iterates over the towers in order.
    pub fn iter(self) -> impl Iterator<Item = Tower> {
        Tower::ALL.into_iter().filter(move |tower| self.contains(*tower))
    }
}

impl FromIterator<Tower> for TowerSet {
    fn from_iter<I: IntoIterator<Item = Tower>>(towers: I) -> Self {
        Self(towers.into_iter().fold(0, |set, tower| set | 1 << tower as u8))
    }
}

impl fmt::Display for Tower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
