//! Describes how files are written in a rendered text.

use crate::data::kind::MediaKind;

/// Describes how files of one kind are written in a rendered text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marker {
    /// The words that stand for a file in a rendered chat template, to be replaced by its [`Expansion`](super::Expansion). Where one
    /// contains another, the longer one comes first.
    pub words: Vec<String>,
    /// The text to write for a file where the chat template knows none; it contains a marker.
    pub inline: String,
}

/// Describes how files are written in a rendered text, by kind; a kind without words is not taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Markers([Marker; 4]);

impl Markers {
    /// Returns the marker of a kind; one without words if files of the kind are not taken.
    pub fn of(&self, kind: MediaKind) -> &Marker {
        &self.0[kind as usize]
    }

    /// Returns these markers with another marker for `kind`.
    pub fn with(mut self, kind: MediaKind, marker: Marker) -> Self {
        self.0[kind as usize] = marker;
        self
    }

    /// These of pictures and of videos; each as its words and what is written for it where the chat template knows none.
    pub fn vision(image: (Vec<String>, String), video: (Vec<String>, String)) -> Self {
        let marker = |(words, inline)| Marker { words, inline };
        Self([marker(image), marker(video), Marker::default(), Marker::default()])
    }
}
