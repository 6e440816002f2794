//! The towers of a model by what they take in.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A tower: an encoder that makes features of one modality for the foundation. A model has at most one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tower {
    /// Takes patches of pictures and videos.
    Vision,
    /// Takes frames of mel spectrograms.
    Audio,
}

impl Tower {
    pub const ALL: [Self; 2] = [Self::Vision, Self::Audio];

    /// The name in configs, reports and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vision => "vision",
            Self::Audio => "audio",
        }
    }
}

impl fmt::Display for Tower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
