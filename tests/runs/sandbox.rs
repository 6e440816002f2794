//! Pictures decoded in processes that may do nothing else.

use crate::must::skip;
use image::codecs::gif::GifEncoder;
use image::{DynamicImage, Frame, ImageBuffer, ImageFormat, Rgb, RgbImage, Rgba, RgbaImage};
use loongforge::core::config::AudioLimits;
use loongforge::core::data::audio::Segment;
use loongforge::core::data::media::Sampling;
use loongforge::core::data::{InProcess, Limits, MediaDecoder};
use loongforge::core::rng::Rng;
use loongforge::sandbox::Sandbox;
use std::io::Cursor;
use std::sync::{Arc, Mutex};

const LIMITS: Limits = Limits { max_side: 4096, max_pixels: 1 << 20 };

/// Returns a sandbox, and what it warns of.
fn sandbox() -> (Sandbox, Arc<Mutex<Vec<String>>>) {
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let heard = warnings.clone();
    let warn = move |warning: &str| heard.lock().unwrap().push(warning.to_owned());
    (Sandbox::new(env!("CARGO_BIN_EXE_loongforge"), warn), warnings)
}

fn encoded(format: ImageFormat) -> Vec<u8> {
    let picture = RgbImage::from_fn(60, 40, |x, y| Rgb([(x * 4) as u8, (y * 6) as u8, (x * y) as u8]));
    let mut bytes = Cursor::new(Vec::new());
    DynamicImage::from(picture).write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

/// Makes five frames, each of another shade.
fn animation() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = GifEncoder::new(&mut bytes);
    for index in 0..5u8 {
        encoder.encode_frame(Frame::new(RgbaImage::from_pixel(20, 10, Rgba([index * 50, 9, 9, 255])))).unwrap();
    }
    drop(encoder);
    bytes
}

/// Pixels that are not RGB as they are decoded.
fn deep() -> Vec<u8> {
    let picture =
        DynamicImage::from(ImageBuffer::from_fn(30, 20, |x, y| Rgba([x as u16 * 2000, y as u16 * 3000, 7, 9])));
    let mut bytes = Cursor::new(Vec::new());
    picture.write_to(&mut bytes, ImageFormat::Png).unwrap();
    bytes.into_inner()
}

#[test]
fn files_come_to_what_they_come_to_in_this_process() {
    let (sandbox, warnings) = sandbox();
    let formats =
        [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP, ImageFormat::Gif, ImageFormat::Bmp, ImageFormat::Tiff];
    let mut files: Vec<Vec<u8>> = formats.into_iter().map(encoded).collect();
    files.extend([animation(), deep()]);
    files.push(include_bytes!("../../src/core/data/goldens/clip.mp4").to_vec());
    let mut random = Rng::new(&[7]);
    let mut below = |end: usize| random.below(end as u64) as usize;
    let (mut good, mut bad, mut most) = (0, 0, 0);
    for round in 0..60 {
        for file in &files {
            let mut bytes = file.clone();
            for _ in 0..round % 4 {
                let at = below(bytes.len());
                bytes[at] = below(256) as u8;
            }
            if round % 5 == 4 {
                bytes.truncate(below(file.len()));
            }
            let ours = InProcess.picture(&bytes, &LIMITS);
            assert_eq!(sandbox.picture(&bytes, &LIMITS), ours);
            *(if ours.is_ok() { &mut good } else { &mut bad }) += 1;
            let clip = |decoder: &dyn MediaDecoder| {
                let video = decoder.clip(&bytes, None, &LIMITS, &Sampling::evenly(3));
                video.map(|video| (video.frames, video.times, video.fps))
            };
            let frames = clip(&InProcess);
            most = most.max(frames.as_ref().map_or(0, |frames| frames.0.len()));
            assert_eq!(clip(&sandbox), frames);
        }
    }
    assert!(good > 50 && bad > 50 && most == 3, "{good} good, {bad} bad, {most} frames");
    let warnings = warnings.lock().unwrap();
    assert!(!warnings.iter().any(|warning| warning.contains("start a decode worker")), "{warnings:?}");
}

/// Returns a WAV file of 16 bits and one channel: a sine.
fn wav(rate: u32, num_samples: usize) -> Vec<u8> {
    let sample = |at: usize| ((at as f64 * 0.3).sin() * 9000.0) as i16;
    let data: Vec<u8> = (0..num_samples).flat_map(|at| sample(at).to_le_bytes()).collect();
    let mut file = b"RIFF".to_vec();
    file.extend((36 + data.len() as u32).to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    file.extend(rate.to_le_bytes());
    file.extend((2 * rate).to_le_bytes());
    file.extend(b"\x02\0\x10\0data");
    file.extend((data.len() as u32).to_le_bytes());
    [file, data].concat()
}

#[test]
fn sound_comes_to_what_it_comes_to_in_this_process() {
    let (sandbox, warnings) = sandbox();
    let limits = AudioLimits { min_seconds: 0.0, max_seconds: 10.0, max_tokens: None };
    let files =
        [wav(16_000, 5000), wav(44_100, 7001), include_bytes!("../../src/core/data/audio/goldens/clip.mp4").to_vec()];
    let mut random = Rng::new(&[9]);
    let mut below = |end: usize| random.below(end as u64) as usize;
    let (mut good, mut bad) = (0, 0);
    for round in 0..20 {
        for file in &files {
            let mut bytes = file.clone();
            for _ in 0..round % 4 {
                let at = below(bytes.len().min(2000));
                bytes[at] = below(256) as u8;
            }
            if round % 5 == 4 {
                bytes.truncate(below(file.len()));
            }
            let segment = if round % 3 == 0 { Segment { start: 0.05, end: Some(0.2) } } else { Segment::WHOLE };
            let ours = InProcess.sound(&bytes, 16_000, &limits, segment);
            assert_eq!(sandbox.sound(&bytes, 16_000, &limits, segment), ours);
            *(if ours.is_ok() { &mut good } else { &mut bad }) += 1;
        }
    }
    assert!(good > 15 && bad > 10, "{good} good, {bad} bad");
    let short = AudioLimits { max_seconds: 0.1, ..limits };
    let error = sandbox.sound(&files[0], 16_000, &short, Segment::WHOLE).unwrap_err();
    assert!(error.contains("data.audio.max_seconds = 0.1"), "{error}");
    let warnings = warnings.lock().unwrap();
    assert!(!warnings.iter().any(|warning| warning.contains("start a decode worker")), "{warnings:?}");
}

#[test]
fn what_a_file_does_to_its_decoder_costs_that_file() {
    let (sandbox, warnings) = sandbox();
    let sandbox = sandbox.with_drill(0.5);
    let good = encoded(ImageFormat::Png);
    let picture = InProcess.picture(&good, &LIMITS).unwrap();
    let reason = |file: &str| {
        let reason = sandbox.picture(file.as_bytes(), &LIMITS).unwrap_err();
        assert_eq!(sandbox.picture(&good, &LIMITS).as_ref(), Ok(&picture), "after {file}");
        reason
    };
    assert_eq!(reason("drill: abort"), "its decoder crashed (signal 6)");
    assert_eq!(reason("drill: loop"), "takes more than 0.5 s to decode");
    assert_eq!(reason("drill: memory"), "takes more than 1024 MiB of memory to decode");
    assert_eq!(reason("drill: panic"), "the program panicked on it; this is a bug, please report it: on request");
    let warnings = warnings.lock().unwrap().join("\n");
    if warnings.contains("seccomp") {
        return skip("seccomp", warnings);
    }
    for deed in ["read a file", "write a file", "socket", "program", "thread"] {
        let reason = reason(&format!("drill: {deed}"));
        assert!(reason.contains("Operation not permitted"), "{deed}: {reason}");
    }
}

#[test]
fn without_workers_pictures_are_decoded_here() {
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let heard = warnings.clone();
    let sandbox = Sandbox::new("/bin/false", move |warning: &str| heard.lock().unwrap().push(warning.to_owned()));
    let file = encoded(ImageFormat::Jpeg);
    for _ in 0..2 {
        assert_eq!(sandbox.picture(&file, &LIMITS), InProcess.picture(&file, &LIMITS));
    }
    let warnings = warnings.lock().unwrap();
    assert!(warnings.len() == 1 && warnings[0].contains("cannot start a decode worker"), "{warnings:?}");
}
