//! Picture files to RGB, with bounds on what a file may ask for. Resizing and normalizing are not done here.

use std::io::{BufReader, Cursor, Read, Seek};
use std::path::Path;

use image::codecs::gif::GifDecoder;
use image::metadata::Orientation;
use image::{AnimationDecoder, ColorType, DynamicImage, ImageDecoder, ImageFormat, ImageReader, RgbImage};

use super::cpu::{CpuClock, MAX_DECODE_SECONDS};
use super::error::DataError;
use super::limits::{Limits, MAX_PICTURE_BYTES};
use super::locator::Locator;
use crate::files;

/// The rate of an animation that does not say one: what browsers show.
const DEFAULT_GIF_FPS: f64 = 10.0;
/// Bytes of a PNG up to the end of its size.
const PNG_HEAD: usize = 24;
const EMPTY: &str = "empty file";
const UNKNOWN: &str = "not a picture in PNG, JPEG, WebP, GIF, BMP or TIFF format";
/// Frames of an animation: an hour at 18 a second. A file of a few bytes a frame could hold millions.
const MAX_GIF_FRAMES: usize = 1 << 16;
/// Frames between two looks at the clock.
const CLOCK_FRAMES: usize = 64;

/// Decodes the frames of an animated GIF and how many there are a second.
///
/// # Errors
/// The reason: no GIF, corrupt, a frame that is too large, more than half a GiB of frames.
pub fn decode_animation(bytes: &[u8], limits: &Limits) -> Result<(Vec<RgbImage>, f64), String> {
    let mut decoder = GifDecoder::new(Cursor::new(bytes)).map_err(|error| describe(&error, limits))?;
    let (width, height) = decoder.dimensions();
    limits.check_size(width, height)?;
    let mut memory = image::Limits::default();
    memory.max_alloc = Some(MAX_PICTURE_BYTES);
    decoder.set_limits(memory).map_err(|error| describe(&error, limits))?;
    let clock = CpuClock::start();
    let (mut frames, mut seconds) = (Vec::new(), 0.0);
    for frame in decoder.into_frames() {
        let frame = frame.map_err(|error| describe(&error, limits))?;
        let (numerator, denominator) = frame.delay().numer_denom_ms();
        seconds += f64::from(numerator) / f64::from(denominator.max(1)) / 1000.0;
        frames.push(DynamicImage::ImageRgba8(frame.into_buffer()).into_rgb8());
        if frames.len().is_multiple_of(CLOCK_FRAMES) {
            clock.check(MAX_DECODE_SECONDS)?;
        }
        if frames.len() > MAX_GIF_FRAMES {
            return Err(format!("has more than {MAX_GIF_FRAMES} frames"));
        }
        if frames.len() as u64 * u64::from(width) * u64::from(height) * 3 > MAX_PICTURE_BYTES {
            return Err(format!("its frames take more than {} MiB", MAX_PICTURE_BYTES >> 20));
        }
    }
    if frames.is_empty() {
        return Err("the animation has no frames".to_owned());
    }
    let fps = if seconds > 0.0 { frames.len() as f64 / seconds } else { DEFAULT_GIF_FPS };
    Ok((frames, fps))
}

/// Reads width and height as the file's header says, not turned upright; the rest of the file is not looked at.
///
/// # Errors
/// Fails as [`open_rgb`](super::open_rgb) does, as far as the header tells.
pub fn header_size(locator: &Locator, base: &Path, limits: &Limits) -> Result<(u32, u32), DataError> {
    let size = match locator {
        Locator::File(name) => match files::open(&base.join(name)) {
            Ok(file) => size_in_header(file, limits),
            Err(error) => Err(error.to_string()),
        },
        _ => size_in_header(Cursor::new(locator.read(base)?), limits),
    };
    size.map_err(|reason| DataError::image(Path::new(&locator.display(base)), reason))
}

fn size_in_header(mut file: impl Read + Seek, limits: &Limits) -> Result<(u32, u32), String> {
    let mut head = Vec::new();
    file.by_ref().take(PNG_HEAD as u64).read_to_end(&mut head).map_err(|error| error.to_string())?;
    if head.is_empty() {
        return Err(EMPTY.to_owned());
    }
    let (width, height) = match png_size(&head) {
        Some(size) => size,
        None => {
            // By its contents, whatever its name says.
            let begin = file.rewind().map(|()| ImageReader::new(BufReader::new(file)));
            let reader = begin.and_then(ImageReader::with_guessed_format).map_err(|error| error.to_string())?;
            reader.format().ok_or(UNKNOWN)?;
            reader.into_dimensions().map_err(|error| describe(&error, limits))?
        }
    };
    limits.check_size(width, height)?;
    Ok((width, height))
}

/// Says where the pixels of a picture are.
pub enum Decoded {
    /// The pixels are at the beginning of the room that was given, rows of RGB.
    InRoom {
        width: u32,
        height: u32,
    },
    Picture(RgbImage),
}

/// Works like [`open_rgb`](super::open_rgb) for bytes; the error is the reason.
pub fn decode_rgb(bytes: &[u8], limits: &Limits) -> Result<RgbImage, String> {
    match decode_rgb_into(bytes, limits, &mut [])? {
        Decoded::Picture(picture) => Ok(picture),
        Decoded::InRoom { .. } => unreachable!("no picture fits there"),
    }
}

/// Works like [`decode_rgb`], but decodes straight into `room` where the pixels need no further work and fit.
///
/// # Errors
/// The reason: as [`decode_rgb`].
pub fn decode_rgb_into(bytes: &[u8], limits: &Limits, room: &mut [u8]) -> Result<Decoded, String> {
    if bytes.is_empty() {
        return Err(EMPTY.to_owned());
    }
    let mut memory = image::Limits::default();
    memory.max_alloc = Some(MAX_PICTURE_BYTES);
    memory.max_image_width = u32::try_from(limits.max_side).ok();
    memory.max_image_height = memory.max_image_width;

    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|e| e.to_string())?;
    let format = reader.format().ok_or(UNKNOWN)?;
    if let Some((width, height)) = png_size(bytes) {
        limits.check_size(width, height)?;
    }
    // Checked below with our own words; the decoder's own limit bounds what it allocates before that.
    reader.limits(memory);
    let mut decoder = reader.into_decoder().map_err(|error| describe(&error, limits))?;
    let (width, height) = decoder.dimensions();
    limits.check_size(width, height)?;
    if decoder.total_bytes() > MAX_PICTURE_BYTES {
        return Err(format!("is {width}×{height} pixels, which takes more than {} MiB", MAX_PICTURE_BYTES >> 20));
    }
    if format == ImageFormat::Jpeg && !jpeg_is_whole(bytes) {
        return Err("truncated or corrupt JPEG".to_owned());
    }
    let orientation = decoder.orientation().map_err(|error| describe(&error, limits))?;
    let clock = CpuClock::for_picture(width, height);
    let len = usize::try_from(decoder.total_bytes()).unwrap_or(usize::MAX);
    if decoder.color_type() == ColorType::Rgb8
        && orientation == Orientation::NoTransforms
        && let Some(room) = room.get_mut(..len)
    {
        // A decoder may leave out what a file leaves out.
        room.fill(0);
        decoder.read_image(room).map_err(|error| describe(&error, limits))?;
        clock.check(MAX_DECODE_SECONDS)?;
        return Ok(Decoded::InRoom { width, height });
    }
    let mut picture = DynamicImage::from_decoder(decoder).map_err(|error| describe(&error, limits))?;
    clock.check(MAX_DECODE_SECONDS)?;
    picture.apply_orientation(orientation);
    Ok(Decoded::Picture(match picture {
        // As Pillow, which drops the lower byte; a conversion would round.
        DynamicImage::ImageRgb16(_)
        | DynamicImage::ImageRgba16(_)
        | DynamicImage::ImageLuma16(_)
        | DynamicImage::ImageLumaA16(_) => upper_bytes(&picture.into_rgb16()),
        picture => picture.into_rgb8(),
    }))
}

fn upper_bytes(picture: &image::ImageBuffer<image::Rgb<u16>, Vec<u16>>) -> RgbImage {
    let bytes = picture.as_raw().iter().map(|value| (value >> 8) as u8).collect();
    RgbImage::from_raw(picture.width(), picture.height(), bytes).expect("as many values")
}

/// Reads width and height in a PNG's header: its decoder refuses absurd ones without naming them.
fn png_size(bytes: &[u8]) -> Option<(u32, u32)> {
    let head = bytes.first_chunk::<PNG_HEAD>().filter(|head| head.starts_with(b"\x89PNG\r\n\x1a\n"))?;
    let number = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    (&head[12..16] == b"IHDR").then(|| (number(16), number(20)))
}

fn describe(error: &image::ImageError, limits: &Limits) -> String {
    // Decoders end some of their reasons with a line break.
    let reason = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    match error {
        image::ImageError::Limits(_) => format!("{reason} (data.image.max_side = {})", limits.max_side),
        image::ImageError::Unsupported(_) => {
            format!("unsupported kind of picture ({reason}): convert it, for example to PNG")
        }
        image::ImageError::IoError(_) => format!("truncated or corrupt: {reason}"),
        _ => format!("corrupt: {reason}"),
    }
}

/// Returns whether the end marker follows the data: the decoder would fill a truncated picture with gray.
fn jpeg_is_whole(bytes: &[u8]) -> bool {
    let mut at = 2;
    let mut in_scan = false;
    while at + 1 < bytes.len() {
        if bytes[at] != 0xff {
            if !in_scan {
                return false;
            }
            at += 1;
            continue;
        }
        match bytes[at + 1] {
            0xd9 => return in_scan,
            // Padding, a data byte of ff, a restart marker: they have no length.
            0xff => at += 1,
            0x00 | 0x01 | 0xd0..=0xd8 => at += 2,
            marker => {
                let Some(length) = bytes.get(at + 2..at + 4) else { return false };
                at += 2 + usize::from(u16::from_be_bytes([length[0], length[1]]));
                in_scan |= marker == 0xda;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use image::{GrayImage, Rgb, RgbaImage};
    use proptest::prelude::*;

    use super::*;
    use crate::data::open_rgb;

    fn side(max_side: usize) -> Limits {
        Limits { max_side, max_pixels: 1 << 26 }
    }

    fn picture(width: u32, height: u32) -> RgbImage {
        RgbImage::from_fn(width, height, |x, y| Rgb([(x * 7) as u8, (y * 5) as u8, (x * y) as u8]))
    }

    fn encode(picture: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        picture.into().write_to(&mut bytes, format).unwrap();
        bytes.into_inner()
    }

    #[test]
    fn gray_is_repeated_and_transparency_dropped() {
        let gray = encode(GrayImage::from_fn(3, 2, |x, _| image::Luma([x as u8 * 9])), ImageFormat::Png);
        assert_eq!(decode_rgb(&gray, &side(100)).unwrap().get_pixel(2, 1).0, [18, 18, 18]);
        let rgba = encode(RgbaImage::from_fn(3, 2, |_, _| image::Rgba([10, 20, 30, 0])), ImageFormat::Png);
        assert_eq!(decode_rgb(&rgba, &side(100)).unwrap().get_pixel(0, 0).0, [10, 20, 30]);
        let rgb = picture(20, 10);
        assert_eq!(decode_rgb(&encode(rgb.clone(), ImageFormat::WebP), &side(100)).unwrap(), rgb);
        assert_eq!(decode_rgb(&encode(rgb, ImageFormat::Jpeg), &side(100)).unwrap().dimensions(), (20, 10));
    }

    #[test]
    fn size_and_shape_are_checked_before_decoding() {
        let reason =
            |width, height| decode_rgb(&encode(picture(width, height), ImageFormat::Png), &side(300)).unwrap_err();
        assert!(reason(301, 4).contains("max_side = 300"), "{}", reason(301, 4));
        assert!(reason(201, 1).contains("aspect ratio"));
        // A header that claims 60000×60000: refused without an attempt to allocate.
        let mut huge = encode(picture(4, 4), ImageFormat::Png);
        huge[16..24].copy_from_slice(&[0, 0, 0xea, 0x60, 0, 0, 0xea, 0x60]);
        let crc = png_crc(&huge[12..29]);
        huge[29..33].copy_from_slice(&crc.to_be_bytes());
        assert!(
            decode_rgb(&huge, &side(16384))
                .unwrap_err()
                .starts_with("is 60000×60000 pixels, more than data.image.max_side")
        );
        let mut zero = encode(picture(4, 4), ImageFormat::Png);
        zero[16..20].fill(0);
        let crc = png_crc(&zero[12..29]);
        zero[29..33].copy_from_slice(&crc.to_be_bytes());
        assert_eq!(decode_rgb(&zero, &side(16384)).unwrap_err(), "is 0×4 pixels");
    }

    #[test]
    fn every_truncation_is_an_error() {
        for format in [ImageFormat::Png, ImageFormat::Jpeg] {
            let bytes = encode(picture(40, 30), format);
            // A PNG's last 12 bytes are its end chunk, which decoders do not need.
            let end = bytes.len() - if format == ImageFormat::Png { 13 } else { 1 };
            for len in (0..end).step_by(3) {
                let reason = decode_rgb(&bytes[..len], &side(100)).expect_err("it is cut");
                assert!(!reason.contains('\n'), "{format:?} cut to {len} of {}: {reason:?}", bytes.len());
            }
        }
        assert!(decode_rgb(b"hello, world", &side(100)).unwrap_err().contains("not a picture"));
        assert!(open_rgb(Path::new("no/such.png"), &side(100)).unwrap_err().to_string().contains("no/such.png"));
    }

    #[test]
    fn kinds_that_are_not_decoded_are_no_corrupt_files() {
        // A TIFF of two pixels with a palette: tag, type (3: 16 bits, 4: 32 bits), number of values, value or place.
        let entries = [
            (256, 4, 1, 2),
            (257, 4, 1, 1),
            (258, 3, 1, 8),
            (259, 3, 1, 1),
            (262, 3, 1, 3),
            (273, 4, 1, 122),
            (278, 4, 1, 1),
            (279, 4, 1, 2),
            (320, 3, 768, 124),
        ];
        let mut file = b"II*\0\x08\0\0\0\x09\0".to_vec();
        for (tag, kind, count, value) in entries {
            file.extend([(tag as u16).to_le_bytes(), (kind as u16).to_le_bytes()].concat());
            file.extend([(count as u32).to_le_bytes(), (value as u32).to_le_bytes()].concat());
        }
        file.resize(124 + 2 * 768, 0);
        let error = decode_rgb(&file, &side(100)).unwrap_err();
        assert!(error.contains("unsupported kind of picture") && error.contains("convert it"), "{error}");
    }

    #[test]
    fn a_thumbnail_does_not_hide_a_truncation() {
        let whole = encode(picture(40, 30), ImageFormat::Jpeg);
        let mut nested = vec![0xff, 0xd8, 0xff, 0xe1];
        nested.extend(((whole.len() + 2) as u16).to_be_bytes());
        nested.extend(&whole);
        nested.extend(&whole[2..]);
        assert!(jpeg_is_whole(&nested));
        nested.truncate(nested.len() - 20);
        assert!(!jpeg_is_whole(&nested));
    }

    fn png_crc(bytes: &[u8]) -> u32 {
        let mut crc = flate2::Crc::new();
        crc.update(bytes);
        crc.sum()
    }

    /// Compares every format through Pillow as transformers loads it, and through ours. What differs is how JPEG's cosines are rounded
    /// and its chroma is enlarged.
    #[test]
    fn equal_to_pillow() {
        #[derive(serde::Deserialize)]
        struct Case {
            name: String,
            file: String,
            size: (u32, u32),
            stride: usize,
            values: Vec<u8>,
        }
        let cases: Vec<Case> = serde_json::from_str(include_str!("goldens/formats.json")).unwrap();
        assert!(cases.len() >= 20);
        for Case { name, file, size, stride, values } in cases {
            let file = base64::engine::general_purpose::STANDARD.decode(file).unwrap();
            let ours = decode_rgb(&file, &side(100)).unwrap();
            assert_eq!(ours.dimensions(), size, "{name}");
            let ours: Vec<u8> = ours.as_raw().iter().copied().step_by(stride).collect();
            let differences: Vec<u8> = ours.iter().zip(&values).map(|(a, b)| a.abs_diff(*b)).collect();
            let most = differences.iter().copied().max().unwrap();
            let mean = differences.iter().map(|&d| f64::from(d)).sum::<f64>() / differences.len() as f64;

            let (max_most, max_mean) = match name.as_str() {
                name if name.starts_with("jpeg") => (3, 0.5),
                _ => (0, 0.0),
            };
            assert!(most <= max_most && mean <= max_mean, "{name}: {most} {mean}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn mutated_files_never_panic(
            format in prop_oneof![Just(ImageFormat::Png), Just(ImageFormat::Jpeg), Just(ImageFormat::WebP), Just(ImageFormat::Gif)],
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = encode(picture(24, 16), format);
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            let _ = decode_rgb(&bytes, &side(256));
            let _ = decode_rgb(&bytes[..cut.index(bytes.len())], &side(256));
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_rgb(&bytes, &side(256));
        }
    }
}
