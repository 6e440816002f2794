use std::path::Path;

use super::augment::SoundChanges;
use super::mel::Frames;
use super::samples::Samples;
use super::tests::sine;
use super::wav::wav;
use crate::config::{AudioAugment, BackgroundNoise, MaskFill};
use crate::data::in_process::InProcess;
use crate::message::SampleId;

const RATE: u32 = 16_000;

fn changes(augment: AudioAugment) -> SoundChanges {
    SoundChanges::open(augment, 7).unwrap()
}

fn power(samples: &[f32]) -> f64 {
    samples.iter().map(|sample| f64::from(*sample).powi(2)).sum::<f64>() / samples.len() as f64
}

/// Counts how often a recording passes 0 upward in a second.
fn pitch(samples: &[f32]) -> f64 {
    let ups = samples.windows(2).filter(|pair| pair[0] < 0.0 && pair[1] >= 0.0).count();
    ups as f64 * f64::from(RATE) / samples.len() as f64
}

#[test]
fn speeds_are_three_and_change_length_and_pitch() {
    let changes = changes(AudioAugment { speed: 0.1, ..AudioAugment::default() });
    let mut counts = [0; 3];
    for sample in 0..90 {
        let samples = Samples::from(sine(500.0, RATE, 0.5));
        let played = changes.draw(SampleId(sample), 0).at_speed(samples, RATE, |_| true).unwrap();
        // At 0.9, 1 and 1.1 of its speed: so many of 8,000 samples, rounded up.
        let lens = [8889, 8000, 7273];
        let which = lens.iter().position(|len| *len == played.len()).unwrap();
        counts[which] += 1;
        let expected = [450.0, 500.0, 550.0][which];
        assert!((pitch(&played) - expected).abs() < 5.0, "{} instead of {expected}", pitch(&played));
    }
    // A third of each, within four deviations, which are 4.5.
    assert!(counts.iter().all(|count| (13..=47).contains(count)), "{counts:?}");
    let kept = (0..30).map(|sample| {
        let samples = Samples::from(sine(500.0, RATE, 0.5));
        changes.draw(SampleId(sample), 0).at_speed(samples, RATE, |len| len <= 8000).unwrap().len()
    });
    let mut kept: Vec<usize> = kept.collect();
    kept.sort_unstable();
    kept.dedup();
    assert_eq!(kept, [7273, 8000]);
}

#[test]
fn changes_belong_to_seed_sample_and_file() {
    let augment = AudioAugment { volume: 6.0, ..AudioAugment::default() };
    let of = |seed, sample, at| {
        let mut samples = vec![0.5; 4];
        SoundChanges::open(augment.clone(), seed).unwrap().draw(SampleId(sample), at).amplify(&mut samples);
        samples[0]
    };
    assert_eq!(of(7, 3, 0), of(7, 3, 0));
    for other in [of(8, 3, 0), of(7, 4, 0), of(7, 3, 1)] {
        assert_ne!(of(7, 3, 0), other);
    }
    let all: Vec<f32> = (0..500).map(|sample| 20.0 * (of(7, sample, 0) / 0.5).log10()).collect();
    let (least, most) = (all.iter().copied().fold(f32::MAX, f32::min), all.iter().copied().fold(f32::MIN, f32::max));
    assert!((-6.01..-5.8).contains(&least) && (5.8..6.01).contains(&most), "{least} {most}");
}

#[test]
fn noise_has_the_ratio_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("street");
    std::fs::create_dir(&inner).unwrap();
    std::fs::write(folder.path().join("readme.txt"), "no recording").unwrap();
    let noise = |path: &Path, prob| BackgroundNoise { path: path.to_owned(), prob, snr: [5.0, 10.0] };
    let with = |path: &Path, prob| AudioAugment { noise: Some(noise(path, prob)), ..AudioAugment::default() };
    let error = SoundChanges::open(with(folder.path(), 1.0), 7).err().unwrap().to_string();
    assert!(error.ends_with("data.audio.augment.noise.path: the folder has no recording"), "{error}");
    // One that is longer than the sample's recording, and one that is shorter.
    std::fs::write(inner.join("long.wav"), wav(&sine(300.0, RATE, 3.0), 1, RATE)).unwrap();
    std::fs::write(folder.path().join("short.wav"), wav(&sine(200.0, RATE, 0.3), 1, RATE)).unwrap();
    let changes = changes(with(folder.path(), 0.5));
    let own = sine(1000.0, RATE, 1.0);
    let (mut count, mut pitches) = (0, [0; 2]);
    for sample in 0..200 {
        let mut samples = own.clone();
        changes.draw(SampleId(sample), 0).add_noise(&mut samples, RATE, &InProcess).unwrap();
        if samples == own {
            continue;
        }
        count += 1;
        let heard: Vec<f32> = samples.iter().zip(&own).map(|(sum, own)| sum - own).collect();
        let ratio = 10.0 * (power(&own) / power(&heard)).log10();
        assert!((4.9..10.1).contains(&ratio), "{ratio} dB");
        pitches[usize::from(pitch(&heard) > 250.0)] += 1;
    }
    // A half, and of it a half of each, within four deviations.
    assert!((72..=128).contains(&count), "{count}");
    assert!(pitches.iter().all(|pitch| pitch * 4 > count), "{pitches:?}");
    std::fs::write(folder.path().join("short.wav"), "no sound").unwrap();
    let errors = (0..50)
        .filter_map(|sample| changes.draw(SampleId(sample), 0).add_noise(&mut own.clone(), RATE, &InProcess).err());
    let error = errors.into_iter().next().unwrap();
    assert!(error.starts_with("data.audio.augment.noise: audio ") && error.contains("short.wav: not a"), "{error}");
    let mut silence = vec![0.0; 100];
    changes.draw(SampleId(1), 0).add_noise(&mut silence, RATE, &InProcess).unwrap_or_default();
    assert_eq!(silence, [0.0; 100]);
}

/// Masked shares of 4,000 draws of `_compute_mask_indices` of transformers 5.17, with `attention_mask`; their deviation is below 4e-4.
#[test]
fn masks_are_as_many_as_in_transformers() {
    for ((heard, prob, length, least), expected) in [
        ((300, 0.05, 10, 2), 0.06565),
        ((300, 0.3, 10, 0), 0.26578),
        ((95, 0.05, 10, 2), 0.20033),
        ((12, 0.05, 10, 2), 0.83333),
        ((9, 0.5, 10, 2), 0.0),
    ] {
        let changes = changes(AudioAugment {
            mask_time_prob: prob,
            mask_time_length: length,
            mask_time_min_masks: least,
            ..AudioAugment::default()
        });
        let mut masked = 0;
        for sample in 0..4000 {
            let mut frames = Frames { num_frames: 310, values: vec![1.0; 310] };
            changes.draw(SampleId(sample), 0).mask(&mut frames, heard);
            assert_eq!(frames.values[heard..], vec![1.0; 310 - heard], "behind the recording");
            masked += frames.values.iter().filter(|value| **value == 0.0).count();
        }
        let share = masked as f64 / 4000.0 / heard as f64;
        assert!((share - expected).abs() < 2e-3, "{heard} frames: {share} instead of {expected}");
    }
}

#[test]
fn bins_are_masked_in_all_frames_and_filled_as_asked() {
    let values: Vec<f32> = (0..6 * 20).map(|at| (at % 20) as f32 + 1.0).collect();
    for (mask_fill, expected) in [(MaskFill::Zero, 0.0), (MaskFill::Min, 1.0), (MaskFill::Mean, 10.5)] {
        let augment = AudioAugment {
            mask_feature_prob: 0.1,
            mask_feature_length: 4,
            mask_feature_min_masks: 1,
            mask_fill,
            ..AudioAugment::default()
        };
        let mut frames = Frames { num_frames: 6, values: values.clone() };
        changes(augment).draw(SampleId(2), 1).mask(&mut frames, 5);
        let is_masked = |row: usize, bin: usize| frames.values[row * 20 + bin] == expected;
        let first = (0..20).find(|bin| (0..4).all(|next| bin + next < 20 && is_masked(0, bin + next))).unwrap();
        for row in 0..6 {
            let changed = (0..20).filter(|bin| frames.values[row * 20 + bin] != values[row * 20 + bin]);
            let is_span = changed.clone().all(|bin| (first..first + 4).contains(&bin));
            assert!(is_span && (row < 5 || changed.count() == 0), "{mask_fill:?} row {row}");
        }
    }
}
