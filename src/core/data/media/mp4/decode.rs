//! The frames of a track, by the decoder of its codec.

use image::RgbImage;

use super::shown::Shown;
use super::stretch::Stretch;
use super::track::{Codec, Track};
use crate::data::decoder::SampledFrames;
use crate::data::limits::Limits;
use crate::data::media::Sampling;

/// Gives `take` the frames that `sampling` takes, in BT.601 colors as the decoders of Hugging Face's processors give them.
///
/// # Errors
/// The reason: what [`Track::read`] refuses, a codec that this program is built without, frames that cannot be decoded, more
/// of them than is taken for one sample.
pub fn frames(
    bytes: &[u8],
    fps: Option<f64>,
    limits: &Limits,
    sampling: &Sampling,
    take: &mut dyn FnMut(RgbImage) -> Result<(), String>,
) -> Result<SampledFrames, String> {
    let track = Track::read(bytes, limits)?;
    let (num_frames, fps) = (track.samples.len(), fps.unwrap_or(track.fps));
    let taken = sampling.indices(num_frames, Some(fps));
    decode(bytes, &track, &taken, limits, take)?;
    Ok(SampledFrames { indices: taken, num_frames, fps })
}

/// Gives `take` the frames that a stretch of coded frames wants, as [`frames`] does.
///
/// # Errors
/// Fails as that function does, and if the lengths are not those of `bytes`.
pub fn stretch_frames(
    bytes: &[u8],
    stretch: &Stretch,
    limits: &Limits,
    take: &mut dyn FnMut(RgbImage) -> Result<(), String>,
) -> Result<SampledFrames, String> {
    let samples = stretch.samples(bytes.len())?;
    let track = Track { samples, fps: 1.0, codec: stretch.codec.clone() };
    decode(bytes, &track, &stretch.taken, limits, take)?;
    Ok(SampledFrames { indices: stretch.taken.clone(), num_frames: track.samples.len(), fps: track.fps })
}

fn decode(
    bytes: &[u8],
    track: &Track,
    taken: &[usize],
    limits: &Limits,
    take: &mut dyn FnMut(RgbImage) -> Result<(), String>,
) -> Result<(), String> {
    let num_frames = track.samples.len();
    let mut shown = Shown::new(taken, take);
    match &track.codec {
        #[cfg(feature = "mp4")]
        Codec::H264(parameters) => super::h264_frames::decode(bytes, track, parameters, limits, &mut shown)?,
        #[cfg(feature = "av1")]
        Codec::Av1(headers) => super::av1_frames::decode(bytes, track, headers, limits, &mut shown)?,
        #[allow(unreachable_patterns, reason = "a build with all decoders has none left")]
        other => return Err(not_built(other, num_frames)),
    }
    if !shown.has_all() {
        let (name, found) = (track.codec.name(), shown.num_shown());
        return Err(format!("corrupt {name}: {found} frames of {num_frames} can be decoded"));
    }
    Ok(())
}

#[allow(dead_code, reason = "a build with all decoders refuses none")]
fn not_built(codec: &Codec, num_frames: usize) -> String {
    let (name, feature) = (codec.name(), codec.feature());
    format!(
        "{num_frames} frames of {name}: this program is built without the feature `{feature}`; build it with `--features \
         loongforge-core/{feature}`, or extract the frames (ffmpeg -i FILE -r 2 FOLDER/%06d.jpg) and name the folder, with \
         \"fps\""
    )
}
