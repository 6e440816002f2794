//! Tests on a clip whose frames PyAV decoded too.

use proptest::prelude::*;

use super::track::Track;
use super::*;
use crate::data::decoder::MediaDecoder;
use crate::data::in_process::InProcess;
use crate::data::limits::Limits;
use crate::data::media::{Sampling, Spread, Video};

const CLIP: &[u8] = include_bytes!("../../goldens/clip.mp4");
const AV1: &[u8] = include_bytes!("../../goldens/clip_av1.mp4");
const LIMITS: Limits = Limits { max_side: 4096, max_pixels: 1 << 20 };

fn sampling() -> Sampling {
    Sampling { fps: 2.0, num_frames: None, min_frames: 4, max_frames: 8, spread: Spread::Ends }
}

/// Returns the clip with one piece replaced by another of its length.
fn edited(old: &[u8], new: &[u8]) -> Vec<u8> {
    let at = CLIP.windows(old.len()).rposition(|window| window == old).unwrap();
    let mut bytes = CLIP.to_vec();
    bytes[at..at + new.len()].copy_from_slice(new);
    bytes
}

fn frames(bytes: &[u8], fps: Option<f64>, limits: &Limits, sampling: &Sampling) -> Result<Video, String> {
    InProcess.clip(bytes, fps, limits, sampling)
}

fn reason(bytes: &[u8]) -> String {
    Track::read(bytes, &LIMITS).unwrap_err()
}

#[test]
fn frames_are_found_and_their_rate() {
    let track = Track::read(CLIP, &LIMITS).unwrap();
    assert_eq!((track.samples.len(), track.fps), (40, 24.0));
    let track::Codec::H264(parameters) = &track.codec else { panic!("{track:?}") };
    assert_eq!(h264::size(&parameters.sequence_sets[0]).unwrap(), (80, 64));
    let track = Track::read(AV1, &LIMITS).unwrap();
    assert_eq!((track.samples.len(), track.fps, track.codec.name()), (40, 24.0, "AV1"));
    assert!(is_mp4(CLIP) && !is_mp4(b"GIF89a"));
}

/// Compares a clip with what PyAV decoded of it. Returns the largest difference.
#[cfg(any(feature = "mp4", feature = "av1"))]
fn difference(clip: &[u8], golden: &str) -> u8 {
    #[derive(serde::Deserialize)]
    struct Golden {
        fps: f64,
        width: usize,
        height: usize,
        indices: Vec<usize>,
        stride: usize,
        values: Vec<Vec<u8>>,
    }
    let golden: Golden = serde_json::from_str(golden).unwrap();
    let video = frames(clip, None, &LIMITS, &sampling()).unwrap();
    assert_eq!(video.dimensions(), (golden.width, golden.height));
    let times: Vec<f64> = golden.indices.iter().map(|&index| index as f64 / golden.fps).collect();
    assert_eq!(video.times, times);
    let mut most = 0;
    for (frame, expected) in video.frames.iter().zip(&golden.values) {
        let ours: Vec<u8> = frame.as_raw().iter().copied().step_by(golden.stride).collect();
        assert_eq!(ours.len(), expected.len());
        most = ours.iter().zip(expected).map(|(a, b)| a.abs_diff(*b)).fold(most, u8::max);
    }
    most
}

/// Decoders are exact; they differ in how they round colors.
#[cfg(feature = "mp4")]
#[test]
fn frames_of_h264_equal_those_of_pyav() {
    let most = difference(CLIP, include_str!("../../goldens/clip.json"));
    assert!(most <= 2, "{most}");
}

#[cfg(feature = "mp4")]
#[test]
fn frames_that_use_all_values_of_a_byte_keep_them() {
    // The clip's set, with a signal type that says so.
    const FULL: &[u8; 24] = b"gd\0\n\xac\xd9E'\x9e\"l\x80\0\0\x03\0\x80\0\0\x18\x07\x89\x12\xcb";
    let mut says_not = *FULL;
    says_not[10] = b'h';
    let track = Track::read(CLIP, &LIMITS).unwrap();
    let track::Codec::H264(own) = &track.codec else { panic!("{track:?}") };
    assert!(h264::is_full_range(FULL) && !h264::is_full_range(&says_not));
    assert!(!h264::is_full_range(&own.sequence_sets[0]));
    assert!((0..=10).all(|len| !h264::is_full_range(&FULL[..len])));
    let bytes: Vec<u8> = track.samples.iter().flat_map(|range| CLIP[range.clone()].to_vec()).collect();
    let first = |set: &[u8]| {
        let codec = track::Codec::H264(h264::Parameters { sequence_sets: vec![set.to_vec()], ..own.clone() });
        let lens = track.samples.iter().map(|range| range.len() as u32).collect();
        InProcess.stretch(&bytes, &Stretch { codec, lens, taken: vec![0] }, &LIMITS).unwrap().remove(0)
    };
    let (full, limited) = (first(FULL), first(&says_not));
    assert!(limited == first(&own.sequence_sets[0]));
    let luma = |[r, g, b]: [u8; 3]| 0.299 * f64::from(r) + 0.587 * f64::from(g) + 0.114 * f64::from(b);
    let mut num_compared = 0;
    for (full, limited) in full.pixels().zip(limited.pixels()) {
        // Colors that were cut off say less.
        if [full.0, limited.0].concat().iter().all(|value| (1..255).contains(value)) {
            let spread = (luma(full.0) - 16.0) * 255.0 / 219.0;
            assert!((luma(limited.0) - spread).abs() < 3.0, "{full:?} {limited:?}");
            num_compared += 1;
        }
    }
    assert!(num_compared > 1000, "{num_compared}");
}

#[cfg(feature = "av1")]
#[test]
fn frames_of_av1_equal_those_of_pyav() {
    let most = difference(AV1, include_str!("../../goldens/clip_av1.json"));
    assert!(most <= 2, "{most}");
}

#[cfg(feature = "av1")]
#[test]
fn what_is_decoded_of_av1_is_bounded() {
    let small = Limits { max_pixels: 68 * 66 - 1, ..LIMITS };
    assert!(frames(AV1, None, &small, &sampling()).unwrap_err().contains("is 68×66 pixels"));
    // The box says 4 by 4, the frames do not.
    let mut lies = AV1.to_vec();
    let at = AV1.windows(4).rposition(|window| window == b"av01").unwrap() + 4 + 24;
    lies[at..at + 4].copy_from_slice(&[0, 4, 0, 4]);
    assert!(frames(&lies, None, &small, &sampling()).unwrap_err().contains("corrupt AV1"));
    let sample = Track::read(AV1, &LIMITS).unwrap().samples[3].clone();
    let mut torn = AV1.to_vec();
    torn[sample.start..sample.end].fill(0xff);
    assert!(frames(&torn, None, &LIMITS, &sampling()).unwrap_err().contains("corrupt AV1"));
    let at = AV1.windows(4).position(|window| window == b"av1C").unwrap() + 4 + 2;
    let mut deep = AV1.to_vec();
    deep[at] |= 0x40;
    assert!(reason(&deep).contains("more than 8 bits"));
}

#[cfg(feature = "mp4")]
#[test]
fn what_is_decoded_is_bounded() {
    let small = Limits { max_pixels: 80 * 64 - 1, ..LIMITS };
    let error = frames(CLIP, None, &small, &sampling()).unwrap_err();
    assert_eq!(error, "is 80×64 pixels, more than data.image.max_decoded_pixels = 5119");
    let mut torn = CLIP.to_vec();
    let sample = Track::read(CLIP, &LIMITS).unwrap().samples[3].clone();
    torn[sample.start..sample.start + 4].fill(0xff);
    assert!(frames(&torn, None, &LIMITS, &sampling()).unwrap_err().contains("corrupt H.264"));
}

#[cfg(not(feature = "mp4"))]
#[test]
fn without_the_feature_it_is_said() {
    let error = frames(CLIP, None, &LIMITS, &sampling()).unwrap_err();
    assert!(
        error.contains("40 frames") && error.contains("loongforge-core/mp4") && error.contains("ffmpeg"),
        "{error}"
    );
}

#[test]
fn what_is_not_decoded_is_named() {
    for (codec, part) in [(b"hvc1", "HEVC"), (b"vp09", "VP9"), (b"xyz1", "\"xyz1\"")] {
        assert!(reason(&edited(b"avc1", codec)[..]).contains(part));
    }
    assert!(reason(&edited(b"vide", b"soun")).contains("no video track"));
    assert!(reason(&edited(b"moov", b"moof")).contains("fragmented"));
    // Its table of frames may have those of the first fragment.
    assert!(reason(&edited(b"udta", b"mvex")).contains("fragmented"));
    assert!(reason(&edited(b"stsz", b"free")).contains("a table is missing"));
    let mut joined = CLIP.to_vec();
    let at = CLIP.windows(4).position(|window| window == b"stsc").unwrap() + 4 + 16;
    joined[at..at + 4].copy_from_slice(&[0, 0, 0, 2]);
    assert!(reason(&joined).contains("joins clips of different coding"));
    assert!(reason(&CLIP[..100]).contains("no table of frames"));
    // The table of frames after the frames, as it lies here: without its last bytes there is none.
    assert!(reason(&CLIP[..CLIP.len() - 1]).contains("no table of frames"));
}

#[test]
fn tables_that_lie_are_refused_before_anything_is_allocated() {
    let at = CLIP.windows(4).position(|window| window == b"stsz").unwrap() + 4;
    let with = |offset: usize, value: u32| {
        let mut bytes = CLIP.to_vec();
        bytes[at + offset..at + offset + 4].copy_from_slice(&value.to_be_bytes());
        reason(&bytes)
    };
    // Four thousand million frames: by a table that is not there, and of one byte each without any table.
    assert!(with(8, u32::MAX).contains("a table is missing"));
    let mut constant = CLIP.to_vec();
    constant[at + 4..at + 12].copy_from_slice(&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]);
    assert!(reason(&constant).contains("more than 1048576"));
    assert!(with(12, u32::MAX).contains("frame 0 is not in the file"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn mutated_files_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in any::<prop::sample::Index>(),
    ) {
        for clip in [CLIP, AV1] {
            // Tables are where the structure is: they lie behind the frames.
            let moov = clip.windows(4).position(|window| window == b"moov").unwrap();
            let mut bytes = clip.to_vec();
            for (at, value) in &changes {
                let at = moov + at.index(bytes.len() - moov);
                bytes[at] = *value;
            }
            let _ = frames(&bytes, None, &LIMITS, &sampling());
            let _ = frames(&bytes[..cut.index(bytes.len())], None, &LIMITS, &sampling());
        }
    }
}

#[cfg(feature = "av1")]
proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn mutated_frames_of_av1_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let mut bytes = AV1.to_vec();
        let samples = Track::read(AV1, &LIMITS).unwrap().samples;
        let end = samples.last().unwrap().end;
        for (at, value) in changes {
            bytes[samples[0].start + at.index(end - samples[0].start)] = value;
        }
        let _ = frames(&bytes, None, &LIMITS, &sampling());
    }
}
