//! The frames of a track, by OpenH264.

use image::RgbImage;
use openh264::OpenH264API;
use openh264::decoder::{DecodedYUV, Decoder, DecoderConfig, Flush};
use openh264::formats::YUVSource;

use super::h264::size;
use super::track::Track;
use crate::data::decoder::SampledFrames;
use crate::data::limits::{Limits, MAX_VIDEO_BYTES};
use crate::data::media::Sampling;
use crate::data::media::video::FEWER;

/// Pixels that are decoded for one sample, shown or not: ten minutes of 1080p at 30 frames a second take a minute or two.
const MAX_PIXELS: u64 = 1 << 35;

/// Gives `take` the frames that `sampling` takes, in BT.601 colors as the decoders of Hugging Face's processors give them.
///
/// # Errors
/// The reason: what [`Track::read`] refuses, frames that cannot be decoded, more of them than is taken for one sample.
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
    let config = DecoderConfig::new().flush_after_decode(Flush::NoFlush);
    let decoder = Decoder::with_api_config(OpenH264API::from_source(), config);
    let mut decoder = decoder.map_err(|error| error.to_string())?;
    let mut shown = Shown { taken: &taken, take, num_taken: 0, size: None, index: 0, pixels: 0 };
    let check = |set: &[u8]| size(set).and_then(|(width, height)| limits.check_size(width, height));
    let mut stream = Vec::new();
    for (index, range) in track.samples.iter().enumerate() {
        track.parameters.stream(&bytes[range.clone()], index == 0, &mut stream, check)?;
        match decoder.decode(&stream) {
            Ok(Some(frame)) => shown.push(&frame)?,
            Ok(None) => {}
            Err(error) => return Err(format!("corrupt H.264: frame {index} of {num_frames}: {error}")),
        }
        if shown.num_taken == taken.len() {
            break;
        }
    }
    if shown.num_taken < taken.len() {
        // The frames that the decoder held back for their order.
        for frame in decoder.flush_remaining().map_err(|error| error.to_string())? {
            shown.push(&frame)?;
        }
    }
    if shown.num_taken < taken.len() {
        return Err(format!("corrupt H.264: {} frames of {num_frames} can be decoded", shown.index));
    }
    Ok(SampledFrames { indices: taken, num_frames, fps })
}

/// Frames in the order in which they are shown.
struct Shown<'a> {
    taken: &'a [usize],
    take: &'a mut dyn FnMut(RgbImage) -> Result<(), String>,
    num_taken: usize,
    /// The size of the first frame that was taken.
    size: Option<(usize, usize)>,
    index: usize,
    pixels: u64,
}

impl Shown<'_> {
    fn push(&mut self, frame: &DecodedYUV<'_>) -> Result<(), String> {
        let (width, height) = frame.dimensions();
        let num_pixels = width as u64 * height as u64;
        self.pixels += num_pixels;
        if self.pixels > MAX_PIXELS {
            return Err(format!(
                "more than {} billion pixels of frames; cut the video, or extract its frames (ffmpeg -i FILE -r 2 \
                 FOLDER/%06d.jpg)",
                MAX_PIXELS >> 30
            ));
        }
        // An index may be taken several times.
        while self.taken.get(self.num_taken) == Some(&self.index) {
            if *self.size.get_or_insert((width, height)) != (width, height) {
                return Err(format!("frame {} is {width}×{height} pixels, the first is not", self.index));
            }
            if (self.num_taken as u64 + 1) * num_pixels * 3 > MAX_VIDEO_BYTES {
                let limit = MAX_VIDEO_BYTES >> 20;
                return Err(format!("its frames take more than {limit} MiB; {FEWER}"));
            }
            let mut rgb = vec![0; width * height * 3];
            frame.write_rgb8(&mut rgb);
            let frame = RgbImage::from_raw(width as u32, height as u32, rgb).expect("a buffer of that size");
            (self.take)(frame)?;
            self.num_taken += 1;
        }
        self.index += 1;
        Ok(())
    }
}
