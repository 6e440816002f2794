//! Describes what a family's processor does, and what it makes of a picture or a video.

use image::RgbImage;

use super::clock::Clock;
use super::kind::{Markers, Tower};
use super::sampling::Sampling;
use super::video::Video;
use crate::data::sample::Media;

/// Pictures and videos of one family of models, as its Hugging Face processor treats them.
pub trait MediaProcessor: Send + Sync {
    /// Numbers of one patch: channels × frames × rows × columns.
    fn patch_dim(&self) -> usize;

    /// Features that a picture of this size, in pixels, becomes.
    ///
    /// # Errors
    /// Its shape is one that the model does not take.
    fn num_image_features(&self, width: usize, height: usize) -> Result<usize, String>;

    /// The most features that a picture becomes, but for elongated ones.
    fn max_image_features(&self) -> usize;

    /// # Errors
    /// Its shape is one that the model does not take.
    fn image(&self, picture: &RgbImage) -> Result<Expansion, String>;

    /// Returns which frames of a video [`MediaProcessor::video`] is to be given.
    fn sampling(&self) -> &Sampling;

    /// # Errors
    /// Its shape is one that the model does not take, or the model takes no videos.
    fn video(&self, video: &Video) -> Result<Expansion, String>;

    /// Returns how the time of a video and of its sound are told together; `None` for a model that hears no video.
    fn clock(&self) -> Option<&Clock> {
        None
    }

    fn markers(&self) -> &Markers;
}

/// A picture, a video or a recording as the model takes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Expansion {
    /// Holds what the encoder takes: one item, or several for a video that is encoded in parts.
    pub media: Vec<Media>,
    /// Holds what stands in the text; the runs together have as many places as the media have features.
    pub pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Text(String),
    Run(Run),
}

/// Placeholders one after another, a box of features: frames, rows, columns, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub t: u32,
    pub h: u32,
    pub w: u32,
    /// Positions from one frame to the next, where positions have three axes.
    pub interval: i64,
    /// The tower whose features replace them, which has a placeholder of its own.
    pub tower: Tower,
    /// Its place in a group of runs that share a timeline; `None` for a run that begins where the text before it ends.
    pub timed: Option<Timed>,
}

/// The place of a run in a group of runs whose positions count from one begin, where positions have three axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// Positions from the group's begin to the run's first one: frames, rows, columns.
    pub offset: [i64; 3],
    /// True for the first run of a group.
    pub begins: bool,
    /// For the last run of a group: positions from the group's begin to the text that follows.
    pub ends: Option<i64>,
    /// Two tokens before the group share a position, and so do two behind it.
    pub twin_markers: bool,
}

impl Run {
    /// A run of a picture or of frames.
    pub fn new(t: usize, h: usize, w: usize) -> Self {
        Self { t: t as u32, h: h as u32, w: w as u32, interval: 1, tower: Tower::Vision, timed: None }
    }

    /// A run of sound, whose features follow each other as tokens of text do.
    pub fn of_sound(len: usize) -> Self {
        Self { tower: Tower::Audio, ..Self::new(len, 1, 1) }
    }

    /// Placeholders in it.
    pub fn len(self) -> usize {
        self.t as usize * self.h as usize * self.w as usize
    }

    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

impl Expansion {
    /// Placeholders alone.
    pub fn plain(media: Media, run: Run) -> Self {
        Self { media: vec![media], pieces: vec![Piece::Run(run)] }
    }

    pub fn num_features(&self) -> usize {
        self.media.iter().map(|item| item.num_features).sum()
    }
}
