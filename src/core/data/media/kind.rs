//! The kinds of files that a sample may have beside its text, and how each is written.

/// A kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Image,
    Video,
    Audio,
}

/// The tower that a file's items go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tower {
    Vision,
    Audio,
}

/// What a kind is called.
struct Names {
    /// In the plural, for messages.
    plural: &'static str,
    /// Stands for a file in the text of a record.
    placeholder: &'static str,
    /// The key of a record that lists files.
    key: &'static str,
    tower: Tower,
}

/// By kind, in the order of [`Kind::ALL`].
const NAMES: [Names; 3] = [
    Names { plural: "pictures", placeholder: "<image>", key: "images", tower: Tower::Vision },
    Names { plural: "videos", placeholder: "<video>", key: "videos", tower: Tower::Vision },
    Names { plural: "audio", placeholder: "<audio>", key: "audios", tower: Tower::Audio },
];

impl Kind {
    pub const ALL: [Self; 3] = [Self::Image, Self::Video, Self::Audio];

    /// In the plural.
    pub fn name(self) -> &'static str {
        NAMES[self as usize].plural
    }

    /// What stands for a file of this kind in the text of a record.
    pub const fn placeholder(self) -> &'static str {
        NAMES[self as usize].placeholder
    }

    /// The key of a record that lists files of this kind.
    pub fn key(self) -> &'static str {
        NAMES[self as usize].key
    }

    pub fn tower(self) -> Tower {
        NAMES[self as usize].tower
    }
}

/// How files of one kind are written in a rendered text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marker {
    /// Holds what stands for a file in a rendered chat template, to be replaced by its
    /// [`Expansion`](super::Expansion). Where one contains another, the longer one comes first.
    pub words: Vec<String>,
    /// Holds what to write for a file where the chat template knows none; it contains a marker.
    pub inline: String,
}

/// How files are written in a rendered text, by kind; a kind without words is not taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Markers([Marker; 3]);

impl Markers {
    pub fn of(&self, kind: Kind) -> &Marker {
        &self.0[kind as usize]
    }

    /// These, with another marker for `kind`.
    pub fn with(mut self, kind: Kind, marker: Marker) -> Self {
        self.0[kind as usize] = marker;
        self
    }

    /// These of pictures and of videos; each as its words and what is written for it where the chat template knows none.
    pub fn vision(image: (Vec<String>, String), video: (Vec<String>, String)) -> Self {
        let marker = |(words, inline)| Marker { words, inline };
        Self([marker(image), marker(video), Marker::default()])
    }
}
