//! Files of pictures, videos and sound decoded in this process.

use std::path::Path;

use image::RgbImage;

use super::audio::{Samples, Segment, decode_sound};
use super::decode::{decode_animation, decode_rgb};
use super::decoder::{MediaDecoder, SampledFrames};
use super::error::DataError;
use super::limits::Limits;
use super::locator::Locator;
use super::media::{Sampling, Stretch, Video, mp4};
use crate::config::AudioLimits;

/// This process. A panic of a decoder is caught where samples are made; what kills a process is not.
#[derive(Clone, Copy, Debug, Default)]
pub struct InProcess;

impl MediaDecoder for InProcess {
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

    fn stretch(&self, bytes: &[u8], stretch: &Stretch, limits: &Limits) -> Result<Vec<RgbImage>, String> {
        let mut frames = Vec::new();
        decode_stretch(bytes, stretch, limits, &mut |frame| {
            frames.push(frame);
            Ok(())
        })?;
        Ok(frames)
    }

    fn sound(&self, bytes: &[u8], rate: u32, limits: &AudioLimits, segment: Segment) -> Result<Samples, String> {
        decode_sound(bytes, rate, limits, segment)
    }
}

/// Decodes as `PIL.Image.open(…)`, `exif_transpose` and `convert("RGB")` do: palettes are looked up, gray is
/// repeated, transparency is dropped, the first frame of an animation is taken.
///
/// # Errors
/// Named by `path`: missing, no picture, corrupt, truncated, larger than `limits`, too elongated.
pub fn open_rgb(path: &Path, limits: &Limits) -> Result<RgbImage, DataError> {
    read_rgb(&Locator::File(path.display().to_string()), Path::new(""), limits)
}

/// Calls [`open_rgb`] for a file relative to `base`, or of bytes.
///
/// # Errors
/// The file cannot be read, or is no picture within `limits`.
pub fn read_rgb(locator: &Locator, base: &Path, limits: &Limits) -> Result<RgbImage, DataError> {
    read_rgb_with(&InProcess, locator, base, limits)
}

/// Works like [`read_rgb`], with pictures decoded by `decoder`.
///
/// # Errors
/// Fails as [`read_rgb`] does.
pub fn read_rgb_with(
    decoder: &dyn MediaDecoder,
    locator: &Locator,
    base: &Path,
    limits: &Limits,
) -> Result<RgbImage, DataError> {
    let bytes = locator.read(base)?;
    decoder.picture(&bytes, limits).map_err(|reason| DataError::image(Path::new(&locator.display(base)), reason))
}

/// Returns whether the bytes are those of a clip that can be decoded, or is refused by name.
pub fn is_clip_file(bytes: &[u8]) -> bool {
    bytes.starts_with(b"GIF8") || mp4::is_mp4(bytes)
}

/// Works like [`MediaDecoder::stretch`], one frame after the other.
///
/// # Errors
/// The reason, or what `take` says.
pub fn decode_stretch(
    bytes: &[u8],
    stretch: &Stretch,
    limits: &Limits,
    take: &mut dyn FnMut(RgbImage) -> Result<(), String>,
) -> Result<SampledFrames, String> {
    mp4::stretch_frames(bytes, stretch, limits, take)
}

/// Works like [`MediaDecoder::clip`], one frame after the other: they need not fit the memory together.
///
/// # Errors
/// The reason, or what `take` says.
pub fn decode_clip(
    bytes: &[u8],
    fps: Option<f64>,
    limits: &Limits,
    sampling: &Sampling,
    take: &mut dyn FnMut(RgbImage) -> Result<(), String>,
) -> Result<SampledFrames, String> {
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
    Ok(SampledFrames { indices, num_frames, fps })
}
