//! The frames of H.264, by OpenH264.

use openh264::OpenH264API;
use openh264::decoder::{DecodedYUV, Decoder, DecoderConfig, Flush};
use openh264::formats::YUVSource;

use super::h264::{Parameters, size};
use super::shown::Shown;
use super::track::Track;
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
    let check = |set: &[u8]| size(set).and_then(|(width, height)| limits.check_size(width, height));
    let mut stream = Vec::new();
    for (index, range) in track.samples.iter().enumerate() {
        parameters.stream(&bytes[range.clone()], index == 0, &mut stream, check)?;
        match decoder.decode(&stream) {
            Ok(Some(frame)) => push(shown, &frame)?,
            Ok(None) => {}
            Err(error) => return Err(format!("corrupt H.264: frame {index} of {num_frames}: {error}")),
        }
        if shown.has_all() {
            return Ok(());
        }
    }
    // The frames that the decoder held back for their order.
    for frame in decoder.flush_remaining().map_err(|error| error.to_string())? {
        push(shown, &frame)?;
    }
    Ok(())
}

fn push(shown: &mut Shown<'_>, frame: &DecodedYUV<'_>) -> Result<(), String> {
    shown.push(frame.dimensions(), |rgb| frame.write_rgb8(rgb))
}
