//! Tells who decodes files of pictures, videos and sound that nobody vouches for: this process, or processes that may be lost.

use image::RgbImage;

use super::audio::decode_sound;
use super::decode::{decode_animation, decode_rgb};
use super::limits::Limits;
use super::media::{Sampling, Video, mp4};
use crate::config::AudioLimits;

/// Decodes files. Every implementation gives the same values and the same reasons for the same bytes, but for what it takes
/// to decode them: a reason may be that a decoder crashed, or took too long or too much memory.
pub trait Decoder: Send + Sync {
    /// A picture, as [`open_rgb`](super::open_rgb) gives it.
    ///
    /// # Errors
    /// The reason.
    fn picture(&self, bytes: &[u8], limits: &Limits) -> Result<RgbImage, String>;

    /// The frames that `sampling` takes of an animated GIF or an MP4 file, by its contents; `fps` goes before its own.
    ///
    /// # Errors
    /// The reason.
    fn clip(&self, bytes: &[u8], fps: Option<f64>, limits: &Limits, sampling: &Sampling) -> Result<Video, String>;

    /// One channel of `rate` samples a second, as [`decode_sound`] gives it.
    ///
    /// # Errors
    /// The reason.
    fn sound(&self, bytes: &[u8], rate: u32, limits: &AudioLimits) -> Result<Vec<f32>, String>;
}

/// This process. A panic of a decoder is caught where samples are made; what kills a process is not.
#[derive(Clone, Copy, Debug, Default)]
pub struct InProcess;

impl Decoder for InProcess {
    fn picture(&self, bytes: &[u8], limits: &Limits) -> Result<RgbImage, String> {
        decode_rgb(bytes, limits)
    }

    fn clip(&self, bytes: &[u8], fps: Option<f64>, limits: &Limits, sampling: &Sampling) -> Result<Video, String> {
        let mut frames = Vec::new();
        let taken = decode_clip(bytes, fps, limits, sampling, &mut |frame| {
            frames.push(frame);
            Ok(())
        })?;
        Ok(taken.video(frames))
    }

    fn sound(&self, bytes: &[u8], rate: u32, limits: &AudioLimits) -> Result<Vec<f32>, String> {
        decode_sound(bytes, rate, limits)
    }
}

/// Describes which frames of a clip were taken.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Taken {
    pub indices: Vec<usize>,
    /// The number of frames of the whole clip.
    pub num_frames: usize,
    /// Frames a second of the whole clip.
    pub fps: f64,
}

impl Taken {
    /// The video of these frames, as many as there are indices.
    pub fn video(&self, frames: Vec<RgbImage>) -> Video {
        Video::new(frames, &self.indices, self.num_frames, self.fps)
    }
}

/// Returns whether the bytes are those of a clip that can be decoded, or is refused by name.
pub fn is_clip_file(bytes: &[u8]) -> bool {
    bytes.starts_with(b"GIF8") || mp4::is_mp4(bytes)
}

/// [`Decoder::clip`], one frame after the other: they need not fit the memory together.
///
/// # Errors
/// The reason, or what `take` says.
pub fn decode_clip(
    bytes: &[u8],
    fps: Option<f64>,
    limits: &Limits,
    sampling: &Sampling,
    take: &mut dyn FnMut(RgbImage) -> Result<(), String>,
) -> Result<Taken, String> {
    if mp4::is_mp4(bytes) {
        return mp4::frames(bytes, fps, limits, sampling, take);
    }
    if !is_clip_file(bytes) {
        return Err("neither an animated GIF nor an MP4 file".to_owned());
    }
    let (frames, own_fps) = decode_animation(bytes, limits)?;
    let (num_frames, fps) = (frames.len(), fps.unwrap_or(own_fps));
    let indices = sampling.indices(num_frames, Some(fps));
    for &index in &indices {
        take(frames[index].clone())?;
    }
    Ok(Taken { indices, num_frames, fps })
}
