//! The kinds of files and of texts for a text tower that a sample may have beside its own text, and how each is written.

use crate::message::Tower;

/// A kind of file, or a text for a text tower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaKind {
    Image,
    Video,
    Audio,
    /// A text for a text tower.
    Context,
}

/// The names of a kind.
struct Names {
    /// The plural, for messages.
    plural: &'static str,
    /// Stands for a file in the text of a record.
    placeholder: &'static str,
    /// The key of a record that lists files.
    key: &'static str,
    tower: Tower,
}

/// The names by kind, in the order of [`MediaKind::ALL`].
const NAMES: [Names; 4] = [
    Names { plural: "pictures", placeholder: "<image>", key: "images", tower: Tower::Vision },
    Names { plural: "videos", placeholder: "<video>", key: "videos", tower: Tower::Vision },
    Names { plural: "audio", placeholder: "<audio>", key: "audios", tower: Tower::Audio },
    Names { plural: "contexts", placeholder: "<context>", key: "contexts", tower: Tower::Text },
];

impl MediaKind {
    pub const ALL: [Self; 4] = [Self::Image, Self::Video, Self::Audio, Self::Context];

    /// Returns the plural.
    pub fn name(self) -> &'static str {
        NAMES[self as usize].plural
    }

    /// Returns the placeholder of a file of this kind in the text of a record.
    pub const fn placeholder(self) -> &'static str {
        NAMES[self as usize].placeholder
    }

    /// Returns the key of a record that lists files of this kind.
    pub fn key(self) -> &'static str {
        NAMES[self as usize].key
    }

    /// Returns the tower that encodes files of this kind.
    pub fn tower(self) -> Tower {
        NAMES[self as usize].tower
    }
}
