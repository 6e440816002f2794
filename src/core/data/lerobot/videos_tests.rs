//! Frames that are read in any order, with those that were decoded ahead.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use image::RgbImage;

use super::videos::Videos;
use crate::config::AudioLimits;
use crate::data::audio::{Samples, Segment};
use crate::data::decoder::MediaDecoder;
use crate::data::error::DataError;
use crate::data::in_process::InProcess;
use crate::data::limits::Limits;
use crate::data::media::{Sampling, Stretch, Video};

/// Counts the stretches that it decodes.
#[derive(Default)]
struct Counting(AtomicUsize);

impl MediaDecoder for Counting {
    fn picture(&self, bytes: &[u8], limits: &Limits) -> Result<RgbImage, String> {
        InProcess.picture(bytes, limits)
    }

    fn clip(&self, bytes: &[u8], fps: Option<f64>, limits: &Limits, sampling: &Sampling) -> Result<Video, String> {
        InProcess.clip(bytes, fps, limits, sampling)
    }

    fn stretch(&self, bytes: &[u8], stretch: &Stretch, limits: &Limits) -> Result<Vec<RgbImage>, String> {
        self.0.fetch_add(1, Ordering::Relaxed);
        InProcess.stretch(bytes, stretch, limits)
    }

    fn sound(&self, bytes: &[u8], rate: u32, limits: &AudioLimits, segment: Segment) -> Result<Samples, String> {
        InProcess.sound(bytes, rate, limits, segment)
    }
}

/// Returns the frame of a number of a clip of 24 frames per second, and how many stretches were decoded for it.
fn nth(videos: &Videos, path: &Path, number: usize) -> Result<(RgbImage, usize), DataError> {
    let decoder = Counting::default();
    let mut frames = videos.frames((3, path), &[number as f64 / 24.0], &decoder, &Limits::NONE)?;
    assert_eq!(frames.len(), 1);
    Ok((frames.remove(0), decoder.0.into_inner()))
}

/// Checks that frames in any order are those that a reader without memory decodes. Returns the stretches that 40 frames in order take.
fn expect_same_in_any_order(clip: &[u8]) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("clip.mp4");
    std::fs::write(&path, clip).unwrap();
    let alone: Vec<RgbImage> = (0..40).map(|at| nth(&Videos::default(), &path, at).unwrap().0).collect();
    assert!(alone[0] != alone[19] && alone[19] != alone[39]);
    let read = |order: &[usize]| {
        let videos = Videos::default();
        let one = |&at: &usize| {
            let (frame, count) = nth(&videos, &path, at).unwrap();
            assert!(frame == alone[at], "frame {at} of {order:?}");
            count
        };
        order.iter().map(one).sum::<usize>()
    };
    // Backward, two readers, each frame twice, and from one place to another.
    read(&(0..40).rev().collect::<Vec<_>>());
    read(&(0..20).flat_map(|at| [at, at + 20]).collect::<Vec<_>>());
    read(&(0..80).map(|at| at / 2).collect::<Vec<_>>());
    read(&(0..40).map(|at| at * 7 % 40).chain([3, 4, 5, 30, 31, 6, 7]).collect::<Vec<_>>());
    read(&(0..40).collect::<Vec<_>>())
}

#[cfg(feature = "mp4")]
#[test]
fn frames_of_h264_that_are_read_in_order_are_decoded_once() {
    // Two key frames, and frames that are shown before one that is decoded first.
    assert_eq!(expect_same_in_any_order(include_bytes!("../goldens/clip.mp4")), 3);
}

#[cfg(feature = "av1")]
#[test]
fn frames_of_av1_that_are_read_in_order_are_decoded_once() {
    // Every second frame is a key frame.
    assert_eq!(expect_same_in_any_order(include_bytes!("../goldens/clip_av1.mp4")), 21);
}

#[cfg(feature = "mp4")]
#[test]
fn frames_that_were_decoded_ahead_are_not_those_of_a_file_that_has_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("clip.mp4");
    std::fs::write(&path, include_bytes!("../goldens/clip.mp4")).unwrap();
    let videos = Videos::default();
    assert_eq!([0, 1, 2].map(|at| nth(&videos, &path, at).unwrap().1), [1, 1, 0]);
    std::fs::File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
    assert!(nth(&videos, &path, 3).is_err());
}

#[cfg(feature = "mp4")]
#[test]
fn a_frame_is_not_refused_for_damaged_ones_behind_it() {
    const CLIP: &[u8] = include_bytes!("../goldens/clip.mp4");
    let begin = |name: &[u8]| CLIP.windows(4).position(|window| window == name).unwrap() + 4;
    // The first unit of the eighth coded frame is longer than the frame.
    let lens = CLIP[begin(b"stsz") + 12..].as_chunks::<4>().0;
    let before: usize = lens[..7].iter().map(|len| u32::from_be_bytes(*len) as usize).sum();
    let mut torn = CLIP.to_vec();
    torn[begin(b"mdat") + before..][..4].fill(0xff);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("clip.mp4");
    std::fs::write(&path, &torn).unwrap();
    let videos = Videos::default();
    let found: Vec<bool> = (0..12).map(|at| nth(&videos, &path, at).is_ok()).collect();
    let alone: Vec<bool> = (0..12).map(|at| nth(&Videos::default(), &path, at).is_ok()).collect();
    assert_eq!(found, alone);
    assert!(found[..5].iter().all(|&is_found| is_found) && found.contains(&false), "{found:?}");
}
