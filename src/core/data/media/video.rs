//! The sampled frames of a video.

use image::RgbImage;

/// The advice against too many frames.
pub const FEWER: &str = "lower data.video.max_frames or data.video.fps";

/// Frames of one size, sampled.
#[derive(Clone, Debug)]
pub struct Video {
    /// The frames, at least one.
    pub frames: Vec<RgbImage>,
    /// The time of each frame, in seconds.
    pub times: Vec<f64>,
    /// Frames a second of those that were taken.
    pub fps: f64,
}

impl Video {
    /// Creates a video of `taken` of the `total` frames that were filmed at `fps`.
    pub fn new(frames: Vec<RgbImage>, taken: &[usize], total: usize, fps: f64) -> Self {
        let times = taken.iter().map(|&index| index as f64 / fps).collect();
        Self { frames, times, fps: taken.len() as f64 / total as f64 * fps }
    }

    /// Returns when each group of `size` frames is seen, in seconds: the mean of its first and its last frame.
    pub fn mean_times(&self, size: usize) -> impl Iterator<Item = f64> + '_ {
        self.times.chunks(size).map(|group| {
            // A last group that is not full is filled with its last frame.
            (group[0] + group[group.len() - 1]) / 2.0
        })
    }

    /// Returns width and height in pixels, which all frames share.
    pub fn dimensions(&self) -> (usize, usize) {
        (self.frames[0].width() as usize, self.frames[0].height() as usize)
    }
}
