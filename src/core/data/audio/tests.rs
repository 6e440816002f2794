use std::io::Read as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::Value as Json;

use super::*;
use crate::config::AudioLimits;

const LIMITS: AudioLimits = AudioLimits { min_seconds: 0.0, max_seconds: 60.0, max_tokens: None };

fn family(name: &str) -> AudioFamily {
    match name {
        "whisper" => AudioFamily::Whisper,
        "qwen2_audio" => AudioFamily::Qwen2Audio,
        "qwen2_5_omni" => AudioFamily::Qwen2_5Omni,
        "qwen3_omni" => AudioFamily::Qwen3Omni,
        "qwen3_asr" => AudioFamily::Qwen3Asr,
        "voxtral" => AudioFamily::Voxtral,
        _ => panic!("{name}"),
    }
}

fn unpacked<T: for<'a> Deserialize<'a>>(golden: &[u8]) -> T {
    let mut text = String::new();
    flate2::read::GzDecoder::new(golden).read_to_string(&mut text).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn floats(base64: &str) -> Vec<f32> {
    let bytes = STANDARD.decode(base64).unwrap();
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    // Not `max`, which drops a NaN.
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).max_by(f32::total_cmp).unwrap_or_default()
}

/// Returns a sine of one channel.
pub fn sine(hz: f64, rate: u32, seconds: f64) -> Vec<f32> {
    let turn = 2.0 * std::f64::consts::PI * hz / f64::from(rate);
    (0..(seconds * f64::from(rate)) as usize).map(|at| (0.5 * (turn * at as f64).sin()) as f32).collect()
}

#[derive(Deserialize)]
struct Goldens {
    wavs: Vec<String>,
    cases: Vec<Case>,
    tokens: std::collections::BTreeMap<String, Vec<(usize, usize)>>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    family: String,
    settings: serde_json::Value,
    wav: usize,
    length: usize,
    num_frames: usize,
    num_tokens: usize,
    rows: Vec<usize>,
    values: String,
}

/// Frames and numbers of tokens of the goldens, from the bytes of the file on; the largest difference.
fn compare(goldens: &Goldens) -> f32 {
    let files: Vec<_> = goldens
        .wavs
        .iter()
        .map(|wav| decode_sound(&STANDARD.decode(wav).unwrap(), 16_000, &LIMITS, Segment::WHOLE))
        .collect();
    let mut largest = 0.0_f32;
    for case in &goldens.cases {
        let settings = AudioSettings::parse(case.settings.clone(), "preprocessor_config.json".into()).unwrap();
        let front_end = FrontEnd::new(family(&case.family), family(&case.family).stack(&Json::Null), &settings);
        let (frames, num_tokens) = front_end.frames(&files[case.wav].as_ref().unwrap()[..case.length]).unwrap();
        let what = format!("{} of {}", case.name, case.family);
        // Qwen2-Audio's reference has no frames behind its 30 seconds.
        assert!(frames.num_frames >= case.num_frames && frames.num_frames <= case.num_frames + 2, "{what}");
        assert_eq!((num_tokens, front_end.num_tokens(case.length)), (case.num_tokens, Ok(num_tokens)), "{what}");
        let row = |&row: &usize| &frames.values[row * front_end.num_mels()..][..front_end.num_mels()];
        let found: Vec<f32> = case.rows.iter().flat_map(row).copied().collect();
        let difference = largest_difference(&found, &floats(&case.values));
        assert!(difference < 5e-5, "{what}: {difference}");
        largest = largest.max(difference);
    }
    largest
}

#[test]
fn frames_equal_the_feature_extractors() {
    let goldens: Goldens = unpacked(include_bytes!("goldens/frames.json.gz"));
    assert!(goldens.cases.len() >= 19);
    compare(&goldens);
    for (name, counts) in &goldens.tokens {
        for &(num_frames, num_tokens) in counts {
            let stack = family(name).stack(&Json::Null);
            assert_eq!(family(name).num_states(num_frames) / stack, num_tokens, "{name}: {num_frames} frames");
        }
    }
}

/// A folder of `tests/oracle/make_audio.py --seeds`: `LOONGFORGE_AUDIO=FOLDER`.
#[test]
fn frames_of_a_folder() {
    let Some(folder) = std::env::var_os("LOONGFORGE_AUDIO") else { return };
    let goldens: Goldens = unpacked(&std::fs::read(std::path::Path::new(&folder).join("frames.json.gz")).unwrap());
    println!("{} clips: the largest difference is {:.1e}", goldens.cases.len(), compare(&goldens));
}

#[test]
fn projectors_of_parts_stack_states() {
    let parts = serde_json::json!({"audio_projector": {"model_type": "mlp", "stack_factor": 5}});
    let front_end = |family: AudioFamily| FrontEnd::new(family, family.stack(&parts), &AudioSettings::default());
    assert_eq!(front_end(AudioFamily::Voxtral).num_tokens(16_000), Ok(300));
    let qwen2 = front_end(AudioFamily::Qwen2Audio);
    assert_eq!(qwen2.num_tokens(16_000), Ok(5));
    let error = qwen2.num_tokens(17_000).unwrap_err();
    assert!(error.contains("27 states, which is not a multiple of stack_factor = 5"), "{error}");
}

#[test]
fn clips_that_are_too_short_or_too_long_are_refused() {
    let frames = |family, len: usize| {
        let mut settings = AudioSettings::default();
        settings.chunk_length = 1;
        FrontEnd::new(family, family.stack(&Json::Null), &settings)
            .frames(&vec![0.0; len])
            .map(|(frames, num_tokens)| (frames.num_frames, num_tokens))
    };
    assert_eq!(frames(AudioFamily::Qwen3Omni, 201), Ok((1, 1)));
    assert!(frames(AudioFamily::Qwen3Omni, 200).unwrap_err().contains("200 samples"));
    assert_eq!(frames(AudioFamily::Qwen3Asr, 1), Ok((50, 7)));
    assert!(frames(AudioFamily::Qwen2Audio, 320).unwrap_err().contains("too few for one token"));
    assert_eq!(frames(AudioFamily::Qwen2Audio, 321), Ok((5, 1)));
    assert_eq!(frames(AudioFamily::Qwen2_5Omni, 16_000), Ok((100, 25)));
    assert!(frames(AudioFamily::Qwen2_5Omni, 16_001).unwrap_err().contains("at most 1 s (chunk_length)"));
    assert_eq!(frames(AudioFamily::Voxtral, 16_001), Ok((200, 25)));
    for family in [AudioFamily::Whisper, AudioFamily::Voxtral, AudioFamily::Qwen3Asr] {
        assert!(frames(family, 0).is_err());
    }
}

#[derive(Deserialize)]
struct Files {
    files: Vec<File>,
    opus: String,
}

#[derive(Deserialize)]
struct File {
    name: String,
    file: String,
    rate: u32,
    num_samples: usize,
    stride: usize,
    values: String,
}

/// Files of every kind as libsndfile and FFmpeg read them. Decoders of MP3 and AAC may drop another number of samples at
/// the ends, up to the delay of an encoder.
#[test]
fn files_equal_other_decoders() {
    let Files { files, opus } = unpacked(include_bytes!("goldens/files.json.gz"));
    assert!(files.len() >= 15);
    for file in files {
        let bytes = STANDARD.decode(&file.file).unwrap();
        let found = decode_sound(&bytes, file.rate, &LIMITS, Segment::WHOLE).unwrap();
        let header = read_header(&bytes).unwrap();
        let is_lossless = file.name.starts_with("wav") || file.name.starts_with("flac");
        let name = &file.name;
        assert_eq!(header.rate, Some(file.rate), "{name}");
        let values = floats(&file.values);
        let strided =
            |from: usize| found.iter().copied().skip(from).step_by(file.stride).take(values.len()).collect::<Vec<_>>();
        if is_lossless {
            assert_eq!((found.len(), header.num_samples), (file.num_samples, Some(file.num_samples as u64)), "{name}");
            assert!(largest_difference(&strided(0), &values) < 1e-6, "{name}");
            continue;
        }
        let most = if name.starts_with("vorbis") { 0 } else { 1200 };
        assert!(found.len().abs_diff(file.num_samples) <= 2 * most, "{name}: {} {}", found.len(), file.num_samples);
        let best = (0..=most).map(|from| {
            let (ours, theirs) = (strided(from), &values[..values.len() - 2 * most / file.stride - 1]);
            largest_difference(&ours[..theirs.len()], theirs)
        });
        let best = best.fold(f32::MAX, f32::min);
        assert!(best < 2e-3, "{name}: {best}");
    }
    let error = decode_sound(&STANDARD.decode(opus).unwrap(), 16_000, &LIMITS, Segment::WHOLE).unwrap_err();
    assert!(error.contains("Opus is not supported") && error.contains("ffmpeg"), "{error}");
}

/// The lower half of the frequencies of HE-AAC is decoded, which is enough where no more is asked for.
#[test]
fn upper_frequencies_that_are_not_decoded_are_refused_where_they_are_missed() {
    let clip = include_bytes!("goldens/clip.mp4");
    let config = [0x14, 0x08, 0x56, 0xe5, 0x00];
    let at = clip.windows(5).position(|window| window == config).unwrap();
    let decode = |config: [u8; 5], rate: u32| {
        let file = [&clip[..at], &config, &clip[at + 5..]].concat();
        decode_sound(&file, rate, &LIMITS, Segment::WHOLE)
    };
    // The last byte says that there is more, and of which rate.
    let halved = [0x14, 0x08, 0x56, 0xe5, 0xa8];
    assert_eq!(decode(halved, 16_000).unwrap(), decode(config, 16_000).unwrap());
    assert!(decode(config, 24_000).is_ok());
    let error = decode(halved, 24_000).unwrap_err();
    assert!(error.contains("HE-AAC") && error.contains("only 16000 Hz of 24000; convert it"), "{error}");
    // The same, said before all else.
    let error = decode([0x2c, 0x0a, 0x88, 0, 0], 16_000).unwrap_err();
    assert!(error.contains("AAC other than AAC-LC of one or two channels is not supported"), "{error}");
}

/// A thread keeps the decoder of its last file of Vorbis for one with the same header.
#[test]
fn files_of_vorbis_that_follow_one_another_have_the_samples_that_they_have_alone() {
    let Files { files, .. } = unpacked(include_bytes!("goldens/files.json.gz"));
    let decode = |bytes: &[u8]| decode_sound(bytes, 16_000, &LIMITS, Segment::WHOLE).map(|samples| samples.to_vec());
    let files = files.iter().filter(|file| file.name.starts_with("vorbis"));
    let files: Vec<Vec<u8>> = files.map(|file| STANDARD.decode(&file.file).unwrap()).collect();
    assert!(files.len() >= 2);
    let alone: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let threads: Vec<_> = files.iter().map(|file| scope.spawn(|| decode(file).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let cut = &files[0][..files[0].len() / 2];
    for at in [0, 0, 1, 0, 1, 1] {
        assert!(decode(&files[at]).unwrap() == alone[at], "file {at}");
        let _ = decode(cut);
        assert!(decode(&files[at]).unwrap() == alone[at], "file {at} behind half of a file");
    }
}

#[test]
fn channels_are_averaged_and_limits_named() {
    let tone = sine(440.0, 16_000, 0.1);
    let stereo: Vec<f32> = tone.iter().flat_map(|&sample| [sample, 0.0]).collect();
    let mixed = decode_sound(&wav(&stereo, 2, 16_000), 16_000, &LIMITS, Segment::WHOLE).unwrap();
    assert!(mixed.iter().zip(&tone).all(|(mixed, tone)| (mixed - tone / 2.0).abs() < 1e-4));

    let error = |file: &[u8], max_seconds| {
        decode_sound(file, 16_000, &AudioLimits { max_seconds, ..LIMITS }, Segment::WHOLE).unwrap_err()
    };
    let file = wav(&tone, 1, 16_000);
    assert!(error(&file, 0.05).contains("data.audio.max_seconds = 0.05"));
    assert!(error(&wav(&tone, 9, 16_000), 1.0).contains("9 channels"));
    assert!(error(&wav(&tone, 1, 3_999), 1.0).contains("a sample rate of 3999 Hz"));
    assert!(
        error(&file[..file.len() - 9], 1.0).contains("PCM_S16LE: truncated"),
        "{}",
        error(&file[..file.len() - 9], 1.0)
    );
    assert!(error(&wav(&[], 1, 16_000), 1.0).contains("no samples"));
    assert!(error(b"hello, world", 1.0).contains("not a supported audio file"));
    // A header that claims hours is refused before anything is decoded.
    let mut claims = file.clone();
    claims[4..8].copy_from_slice(&0x7fff_fffe_u32.to_le_bytes());
    claims[40..44].copy_from_slice(&0x7fff_ffd0_u32.to_le_bytes());
    assert!(error(&claims, 60.0).contains("lasts 67108.9 s"), "{}", error(&claims, 60.0));
}

#[test]
fn a_segment_is_a_slice_of_the_whole() {
    let Files { files, .. } = unpacked(include_bytes!("goldens/files.json.gz"));
    let files: Vec<Vec<u8>> = files.iter().map(|file| STANDARD.decode(&file.file).unwrap()).collect();
    let tone = wav(&sine(440.0, 16_000, 1.0), 1, 16_000);
    for file in files.iter().chain([&tone]) {
        let rate = read_header(file).unwrap().rate.unwrap();
        let of = |start: f64, end: Option<f64>| {
            decode_sound(file, rate, &LIMITS, Segment::new(start, end).unwrap()).unwrap()
        };
        let (whole, at) = (of(0.0, None), |seconds: f64| (seconds * f64::from(rate)).round() as usize);
        let seconds = whole.len() as f64 / f64::from(rate);
        let (start, end) = (0.2 * seconds, 0.6 * seconds);
        assert_eq!(of(start, Some(end))[..], whole[at(start)..at(end)]);
        assert_eq!(of(start, None)[..], whole[at(start)..]);
        // Other programs count what an encoder of MP3 added.
        let end = |more: f64| Segment::new(start, Some(seconds + more)).unwrap();
        let decode = |more: f64| decode_sound(file, rate, &LIMITS, end(more));
        let most = if read_header(file).unwrap().codec == "MP3" { (2304.0 / f64::from(rate)).max(0.1) } else { 0.1 };
        assert_eq!(decode(most - 1e-3).unwrap()[..], whole[at(start)..]);
        assert!(decode(most + 1e-3).unwrap_err().contains("but its segment ends at"));
    }
    let error = |start: f64, end: Option<f64>, max_seconds: f64| {
        let limits = AudioLimits { max_seconds, ..LIMITS };
        decode_sound(&tone, 16_000, &limits, Segment::new(start, end).unwrap()).unwrap_err()
    };
    assert!(error(0.5, Some(1.2), 9.0).contains("lasts 1.000 s, but its segment ends at 1.2 s"));
    assert!(error(1.5, None, 9.0).contains("its segment begins at 1.5 s"));
    // The limit is that of the segment, and the end may be rounded.
    assert!(error(0.2, Some(0.6), 0.3).contains("lasts 0.4 s or more, more than data.audio.max_seconds = 0.3"));
    let last = Segment::new(0.9, Some(1.05)).unwrap();
    assert_eq!(decode_sound(&tone, 16_000, &AudioLimits { max_seconds: 0.2, ..LIMITS }, last).unwrap().len(), 1600);
    for (start, end, part) in [
        (-1.0, None, "must begin within 0 to 86400 s, found -1 s"),
        (f64::NAN, None, "must begin within 0 to 86400 s, found NaN s"),
        (1.0, Some(1.0), "ends at 1 s, but begins at 1 s"),
        (0.0, Some(1e9), "0 to 86400 s"),
    ] {
        assert!(Segment::new(start, end).unwrap_err().contains(part), "{part}");
    }
}

/// Returns the level of a frequency in a clip, as a share of full scale.
fn level(samples: &[f32], hz: f64, rate: u32) -> f64 {
    let turn = 2.0 * std::f64::consts::PI * hz / f64::from(rate);
    let (mut re, mut im) = (0.0, 0.0);
    for (at, &sample) in samples.iter().enumerate() {
        re += f64::from(sample) * (turn * at as f64).cos();
        im += f64::from(sample) * (turn * at as f64).sin();
    }
    2.0 * re.hypot(im) / samples.len() as f64
}

#[test]
fn resampling_keeps_levels_and_drops_what_does_not_fit() {
    for from in [8_000, 11_025, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000] {
        let resampled = resample(sine(1000.0, from, 1.0).into(), from, 16_000).unwrap();
        assert_eq!(resampled.len(), 16_000, "{from}");
        let decibels = 20.0 * (level(&resampled[4000..12_000], 1000.0, 16_000) / 0.5).log10();
        assert!(decibels.abs() < 0.1, "{from}: {decibels}");
    }
    // 10 kHz would fold to 6 kHz.
    let folded = resample(sine(10_000.0, 44_100, 1.0).into(), 44_100, 16_000).unwrap();
    assert!(20.0 * (level(&folded[2000..14_000], 6000.0, 16_000) / 0.5).log10() < -60.0);
    assert_eq!(resample(vec![0.5; 7].into(), 16_000, 16_000).unwrap()[..], [0.5; 7]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// A clip's length and the place of an impulse do not depend on the rates.
    #[test]
    fn resampling_is_in_time(
        from in prop::sample::select(vec![8_000_u32, 22_050, 24_000, 44_100, 48_000, 44_099]),
        len in 1_usize..20_000,
        at in any::<prop::sample::Index>(),
    ) {
        let at = at.index(len);
        let mut clip = vec![0.0; len];
        clip[at] = 1.0;
        let resampled = resample(clip.into(), from, 16_000).unwrap();
        prop_assert_eq!(resampled.len(), (len * 16_000).div_ceil(from as usize));
        let loudest = (0..resampled.len()).max_by(|&a, &b| resampled[a].abs().total_cmp(&resampled[b].abs())).unwrap();
        let expected = at as f64 * 16_000.0 / f64::from(from);
        prop_assert!((loudest as f64 - expected).abs() <= 1.0, "{} {}", loudest, expected);
    }
}
