//! Tells who decodes files of pictures, videos and sound that nobody vouches for: this process, or processes that may be lost.

use image::RgbImage;

use super::audio::{Samples, Segment};
use super::limits::Limits;
use super::media::{Sampling, Stretch, Video};
use crate::config::AudioLimits;

/// Decodes files. Every implementation gives the same values and the same reasons for the same bytes, but for what it takes
/// to decode them: a reason may be that a decoder crashed, or took too long or too much memory.
pub trait MediaDecoder: Send + Sync {
    /// Decodes a picture, as [`open_rgb`](super::open_rgb) gives it.
    ///
    /// # Errors
    /// The reason.
    fn picture(&self, bytes: &[u8], limits: &Limits) -> Result<RgbImage, String>;

    /// Decodes the frames that `sampling` takes of an animated GIF or an MP4 file, by its contents; `fps` goes before its own.
    ///
    /// # Errors
    /// The reason.
    fn clip(&self, bytes: &[u8], fps: Option<f64>, limits: &Limits, sampling: &Sampling) -> Result<Video, String>;

    /// Decodes the frames of an MP4 file that `stretch` wants, of the coded frames `bytes`, in the order in which they are shown.
    ///
    /// # Errors
    /// The reason.
    fn stretch(&self, bytes: &[u8], stretch: &Stretch, limits: &Limits) -> Result<Vec<RgbImage>, String>;

    /// Decodes one channel of a segment, of `rate` samples a second, as [`decode_sound`](super::audio::decode_sound) gives it.
    ///
    /// # Errors
    /// The reason.
    fn sound(&self, bytes: &[u8], rate: u32, limits: &AudioLimits, segment: Segment) -> Result<Samples, String>;
}

/// Describes which frames of a clip were taken.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SampledFrames {
    pub indices: Vec<usize>,
    /// The number of frames of the whole clip.
    pub num_frames: usize,
    /// Frames a second of the whole clip.
    pub fps: f64,
}

impl SampledFrames {
    /// Makes the video of these frames, as many as there are indices.
    pub fn video(&self, frames: Vec<RgbImage>) -> Video {
        Video::new(frames, &self.indices, self.num_frames, self.fps)
    }
}
