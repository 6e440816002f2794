//! The frames of H.264, by OpenH264.

use std::cell::Cell;

use openh264::OpenH264API;
use openh264::decoder::{DecodedYUV, Decoder, DecoderConfig, Flush};
use openh264::formats::YUVSource;

use super::h264::{Parameters, is_full_range, size};
use super::shown::Shown;
use super::track::Track;
use super::yuv::write_row;
use crate::data::limits::Limits;

/// Decodes a track until `shown` has all that it takes.
///
/// # Errors
/// The reason: a frame is too large or cannot be decoded.
pub fn decode(
    bytes: &[u8],
    track: &Track,
    parameters: &Parameters,
    limits: &Limits,
    shown: &mut Shown<'_>,
) -> Result<(), String> {
    let num_frames = track.samples.len();
    let config = DecoderConfig::new().flush_after_decode(Flush::NoFlush);
    let decoder = Decoder::with_api_config(OpenH264API::from_source(), config);
    let mut decoder = decoder.map_err(|error| error.to_string())?;
    let is_full = Cell::new(parameters.sequence_sets.first().is_some_and(|set| is_full_range(set)));
    // Sets may also lie among the frames: the last one holds.
    let check = |set: &[u8]| {
        is_full.set(is_full_range(set));
        size(set).and_then(|(width, height)| limits.check_size(width, height))
    };
    let mut stream = Vec::new();
    for (index, range) in track.samples.iter().enumerate() {
        parameters.stream(&bytes[range.clone()], index == 0, &mut stream, check)?;
        match decoder.decode(&stream) {
            Ok(Some(frame)) => push(shown, &frame, is_full.get())?,
            Ok(None) => {}
            Err(error) => return Err(format!("corrupt H.264: frame {index} of {num_frames}: {error}")),
        }
        if shown.has_all() {
            return Ok(());
        }
    }
    // The frames that the decoder held back for their order.
    for frame in decoder.flush_remaining().map_err(|error| error.to_string())? {
        push(shown, &frame, is_full.get())?;
    }
    Ok(())
}

fn push(shown: &mut Shown<'_>, frame: &DecodedYUV<'_>, is_full: bool) -> Result<(), String> {
    shown.push(frame.dimensions(), |rgb| match is_full {
        true => write_full_range(frame, rgb),
        false => frame.write_rgb8(rgb),
    })
}

/// Writes rows of RGB of a frame whose luma and chroma have all values of a byte, which the decoder's own colors do not know.
fn write_full_range(frame: &DecodedYUV<'_>, rgb: &mut [u8]) {
    let (width, _) = frame.dimensions();
    let (stride, u_stride, v_stride) = frame.strides();
    let planes = [(frame.u(), u_stride), (frame.v(), v_stride)];
    for (y, row) in rgb.chunks_exact_mut(width * 3).enumerate() {
        let chroma = planes.map(|(plane, stride)| &plane[y / 2 * stride..][..width.div_ceil(2)]);
        write_row(&frame.y()[y * stride..][..width], Some(chroma), 2, true, row);
    }
}
