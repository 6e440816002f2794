//! Videos in MP4 files: where the frames lie in the file, how large they are, and — with the feature `mp4` — what they
//! show. Only H.264 in 8 bits, 4:2:0, not interlaced, not fragmented: what phones, cameras and `ffmpeg` write by default.
//! Not for sound.

mod boxes;
#[cfg(feature = "mp4")]
mod decode;
mod h264;
#[cfg(test)]
mod tests;
mod track;

pub use track::is_mp4;

#[cfg(feature = "mp4")]
pub use decode::frames;

#[cfg(not(feature = "mp4"))]
use self::track::Track;
#[cfg(not(feature = "mp4"))]
use super::Sampling;
#[cfg(not(feature = "mp4"))]
use crate::data::decoder::SampledFrames;
#[cfg(not(feature = "mp4"))]
use crate::data::limits::Limits;

/// # Errors
/// Always: what the feature `mp4` decodes cannot be decoded.
#[cfg(not(feature = "mp4"))]
pub fn frames(
    bytes: &[u8],
    _: Option<f64>,
    limits: &Limits,
    _: &Sampling,
    _: &mut dyn FnMut(image::RgbImage) -> Result<(), String>,
) -> Result<SampledFrames, String> {
    let track = Track::read(bytes, limits)?;
    Err(format!(
        "an MP4 file of {} frames: this program is built without the feature `mp4`; build it with `--features mp4`, or \
         extract the frames (ffmpeg -i FILE -r 2 FOLDER/%06d.jpg) and name the folder, with \"fps\"",
        track.samples.len()
    ))
}
