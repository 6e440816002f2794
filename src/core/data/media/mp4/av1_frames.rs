//! The frames of AV1, by rav1d: the port of dav1d to Rust.

use re_rav1d::dav1d::{Decoder, Error, Picture, PixelLayout, PlanarImageComponent, Settings, pixel::YUVRange};

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
    headers: &[u8],
    limits: &Limits,
    shown: &mut Shown<'_>,
) -> Result<(), String> {
    let num_frames = track.samples.len();
    let mut settings = Settings::new();
    // More threads are no use for frames one after another, and a sandbox has none to give.
    settings.set_n_threads(1);
    settings.set_max_frame_delay(1);
    settings.set_frame_size_limit(u32::try_from(limits.max_pixels).unwrap_or(u32::MAX));
    let mut decoder = Decoder::with_settings(&settings).map_err(|error| error.to_string())?;
    for (index, range) in track.samples.iter().enumerate() {
        let corrupt = |error: Error| format!("corrupt AV1: frame {index} of {num_frames}: {error}");
        let headers = if index == 0 { headers } else { &[] };
        let mut sent = decoder.send_data([headers, &bytes[range.clone()]].concat(), None, None, None);
        let mut gave_none = false;
        loop {
            match decoder.get_picture() {
                Ok(frame) => {
                    gave_none = false;
                    push(shown, &frame, limits)?;
                }
                Err(Error::Again) if sent.is_ok() => break,
                // It neither takes data nor gives frames: broken data may bring it there.
                Err(error @ Error::Again) if gave_none => return Err(corrupt(error)),
                Err(Error::Again) => gave_none = true,
                Err(error) => return Err(corrupt(error)),
            }
            match sent {
                Err(Error::Again) => sent = decoder.send_pending_data(),
                Err(error) => return Err(corrupt(error)),
                Ok(()) => {}
            }
        }
        if shown.has_all() {
            break;
        }
    }
    Ok(())
}

fn push(shown: &mut Shown<'_>, frame: &Picture, limits: &Limits) -> Result<(), String> {
    limits.check_size(frame.width(), frame.height())?;
    shown.push((frame.width() as usize, frame.height() as usize), |rgb| write_rgb(frame, rgb))
}

/// Writes a frame of 8 bits as rows of RGB.
fn write_rgb(frame: &Picture, rgb: &mut [u8]) {
    let width = frame.width() as usize;
    let (columns, rows) = match frame.pixel_layout() {
        PixelLayout::I400 | PixelLayout::I444 => (1, 1),
        PixelLayout::I422 => (2, 1),
        PixelLayout::I420 => (2, 2),
    };
    let plane = |of| (frame.plane(of), frame.stride(of) as usize);
    let luma = plane(PlanarImageComponent::Y);
    let chroma = (frame.pixel_layout() != PixelLayout::I400)
        .then(|| [plane(PlanarImageComponent::U), plane(PlanarImageComponent::V)]);
    let is_full = frame.color_range() == YUVRange::Full;
    for (y, row) in rgb.chunks_exact_mut(width * 3).enumerate() {
        let luma = &luma.0[y * luma.1..][..width];
        let chroma = chroma.as_ref().map(|planes| {
            planes.each_ref().map(|(plane, stride)| &plane[y / rows * stride..][..width.div_ceil(columns)])
        });
        write_row(luma, chroma, columns, is_full, row);
    }
}
