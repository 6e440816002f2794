//! Describes what a family's processor does, and what it makes of a picture or a video.

use image::RgbImage;

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

    fn markers(&self) -> &Markers;
}

/// Describes how pictures and videos are written in text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Markers {
    /// Holds what stands for a picture in a rendered chat template, to be replaced by its [`Expansion`]. Where one
    /// contains another, the longer one comes first.
    pub image: Vec<String>,
    pub video: Vec<String>,
    /// Holds what to write for a picture where the chat template knows none; it contains a marker.
    pub inline_image: String,
    pub inline_video: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Image,
    Video,
    /// Kept in samples; no processor takes it.
    Audio,
}

impl Kind {
    /// In the plural.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Image => "pictures",
            Kind::Video => "videos",
            Kind::Audio => "audio",
        }
    }
}

/// A picture or a video as the model takes it.
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
}

impl Run {
    pub fn new(t: usize, h: usize, w: usize) -> Self {
        Self { t: t as u32, h: h as u32, w: w as u32, interval: 1 }
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
