//! The form of a picture, a video or a recording in a sample.

use crate::data::sample::Media;
use crate::message::Tower;

/// A picture, a video or a recording as the model takes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Expansion {
    /// The inputs of the encoder: one item, or several for a video that is encoded in parts.
    pub media: Vec<Media>,
    /// The pieces of the text; the runs together have as many places as the media have features.
    pub pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    Text(String),
    /// The number of the file among those of its kind in the text, where that of the first is this.
    Number(usize),
    Run(Run),
}

/// Placeholders one after another, a box of features: frames, rows, columns, in this order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    pub t: u32,
    pub h: u32,
    pub w: u32,
    /// Positions from one frame to the next, where positions have three axes.
    pub interval: i64,
    /// The tower whose features replace them, which has a placeholder of its own.
    pub tower: Tower,
    /// The place of the run in a group of runs that share a timeline; `None` for a run that begins where the text before it ends.
    pub timed: Option<Timed>,
}

/// The place of a run in a group of runs whose positions count from one begin, where positions have three axes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timed {
    /// Positions from the group's begin to the run's first one: frames, rows, columns.
    pub offset: [f32; 3],
    /// True for the first run of a group.
    pub begins: bool,
    /// The positions from the group's begin to the text that follows, for the last run of a group.
    pub ends: Option<f32>,
    /// Two tokens before the group share a position, and so do two behind it.
    pub twin_markers: bool,
}

impl Run {
    /// Returns a run of a picture or of frames.
    pub fn new(t: usize, h: usize, w: usize) -> Self {
        Self { t: t as u32, h: h as u32, w: w as u32, interval: 1, tower: Tower::Vision, timed: None }
    }

    /// Returns a run of sound, whose features follow each other as tokens of text do.
    pub fn of_sound(len: usize) -> Self {
        Self { tower: Tower::Audio, ..Self::new(len, 1, 1) }
    }

    /// Returns the number of placeholders in the run.
    pub fn len(self) -> usize {
        self.t as usize * self.h as usize * self.w as usize
    }

    /// Returns whether it has no placeholder.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

impl Expansion {
    /// Placeholders alone.
    pub fn plain(media: Media, run: Run) -> Self {
        Self { media: vec![media], pieces: vec![Piece::Run(run)] }
    }

    /// Returns the number of features of all its items, one for each placeholder.
    pub fn num_features(&self) -> usize {
        self.media.iter().map(|item| item.num_features).sum()
    }
}
