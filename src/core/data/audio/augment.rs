//! Random changes of training recordings, so that a model does not learn one voice, one room and one microphone by heart: another
//! speed (Ko et al. 2015), noise, other loudness, and masks of the log-mel spectrogram (SpecAugment, Park et al. 2019).
//!
//! ```text
//! samples ─ speed ─ noise ─ volume ─ log-mel ─ masks ─ frames
//! ```

use std::path::{Path, PathBuf};

use super::decode::read_header;
use super::mel::Frames;
use super::resample::resample;
use super::samples::Samples;
use super::segment::Segment;
use crate::config::{AudioAugment, AudioLimits, BackgroundNoise, MaskFill};
use crate::data::decoder::MediaDecoder;
use crate::data::error::DataError;
use crate::data::file_kind::is_recording;
use crate::data::locator::Locator;
use crate::data::processor::guarded;
use crate::data::source::files_below;
use crate::message::SampleId;
use crate::rng::{Counter, Rng};

/// Marks what these numbers are for.
const PURPOSE: u64 = 0x736f_756e;
/// The places of the numbers of a recording, which stay the same whatever is asked for.
const SPEED: u64 = 0;
const VOLUME: u64 = 1;
const HAS_NOISE: u64 = 2;
const WHICH_NOISE: u64 = 3;
const NOISE_BEGIN: u64 = 4;
const NOISE_RATIO: u64 = 5;
const TIME_MASKS: u64 = 6;
const FEATURE_MASKS: u64 = 7;
/// A larger difference of rates is no longer a fraction of small numbers, which the resampler takes.
const RATE_STEP: f64 = 100.0;

/// The changes that a run asks for.
pub struct SoundChanges {
    augment: AudioAugment,
    /// Recordings of noise; none where none is asked for.
    noises: Vec<PathBuf>,
    seed: u64,
}

/// The change of one recording at one visit: the same for everyone who makes the sample.
#[derive(Clone, Copy)]
pub struct SoundChange<'a> {
    of: &'a SoundChanges,
    /// The key of its random numbers.
    key: [u64; 4],
}

impl SoundChanges {
    /// `seed` is that of the run.
    ///
    /// # Errors
    /// The folder of noise has no recording.
    pub fn open(augment: AudioAugment, seed: u64) -> Result<Self, DataError> {
        let noises = augment.noise.as_ref().map(|noise| noises(&noise.path)).transpose()?.unwrap_or_default();
        Ok(Self { augment, noises, seed })
    }

    /// Returns whether recordings may become longer or shorter.
    pub fn change_lengths(&self) -> bool {
        self.augment.speed > 0.0
    }

    /// Returns the change of the file `at` of a sample.
    pub fn draw(&self, sample: SampleId, at: usize) -> SoundChange<'_> {
        SoundChange { of: self, key: [self.seed, sample.0, at as u64, PURPOSE] }
    }
}

impl SoundChange<'_> {
    /// Returns a number from 0 to 1.
    fn number(&self, place: u64) -> f64 {
        Counter::new(&self.key).unit(place)
    }

    /// Returns the recording at another speed, and so at another pitch; at its own where `takes` says no to the new number of samples.
    ///
    /// # Errors
    /// The rates cannot be converted.
    pub fn at_speed(&self, samples: Samples, rate: u32, takes: impl Fn(usize) -> bool) -> Result<Samples, String> {
        let speed = self.of.augment.speed;
        let factor = 1.0 + speed * ((3.0 * self.number(SPEED)).floor() - 1.0);
        let from = ((f64::from(rate) * factor / RATE_STEP).round() * RATE_STEP) as u32;
        let len = (samples.len() as u64 * u64::from(rate)).div_ceil(u64::from(from)) as usize;
        match from != rate && takes(len) {
            true => resample(samples, from, rate),
            false => Ok(samples),
        }
    }

    /// Adds noise, by the mean power of both.
    ///
    /// # Errors
    /// The reason, which names the recording of noise: it cannot be read or decoded.
    pub fn add_noise(&self, samples: &mut [f32], rate: u32, decoder: &dyn MediaDecoder) -> Result<(), String> {
        let Some(BackgroundNoise { prob, snr: [least, most], .. }) = self.of.augment.noise else { return Ok(()) };
        if self.number(HAS_NOISE) >= prob || samples.is_empty() {
            return Ok(());
        }
        let which = (self.number(WHICH_NOISE) * self.of.noises.len() as f64) as usize;
        let path = &self.of.noises[which.min(self.of.noises.len() - 1)];
        let fail = |error: DataError| format!("data.audio.augment.noise: {error}");
        let noise = self.noise(path, (samples.len(), rate), decoder).map_err(fail)?;
        let (own, other) = (power(samples), power(&noise));
        // Nothing is heard behind silence, nor of it.
        if own > 0.0 && other > 0.0 {
            let ratio = least + (most - least) * self.number(NOISE_RATIO);
            let factor = (own / other / 10f64.powf(ratio / 10.0)).sqrt() as f32;
            // One that is shorter begins again.
            samples.iter_mut().zip(noise.iter().cycle()).for_each(|(sample, noise)| *sample += factor * noise);
        }
        Ok(())
    }

    /// Reads `len` samples of a recording from a place by chance, or all that it has.
    fn noise(&self, path: &Path, (len, rate): (usize, u32), decoder: &dyn MediaDecoder) -> Result<Samples, DataError> {
        let fail = |reason: String| DataError::audio(path, reason);
        let locator = Locator::File(path.display().to_string());
        let bytes = locator.read_sound(Path::new(""))?;
        let header = guarded(|| read_header(&bytes).map_err(fail))?;
        let seconds = len as f64 / f64::from(rate);
        let start = header.seconds().map_or(0.0, |whole| (whole - seconds).max(0.0) * self.number(NOISE_BEGIN));
        // Where the header does not tell, the limit is on what is decoded.
        let limits = AudioLimits { min_seconds: 0.0, max_seconds: 3600.0, max_tokens: None };
        let end = header.seconds().map(|whole| (start + seconds).min(whole)).filter(|end| *end > start);
        let segment = Segment::new(start, end).map_err(fail)?;
        let samples = decoder.sound(&bytes, rate, &limits, segment).map_err(fail)?;
        match samples.is_empty() {
            true => Err(fail("has no samples".to_owned())),
            false => Ok(samples),
        }
    }

    /// Makes the recording louder or softer.
    pub fn amplify(&self, samples: &mut [f32]) {
        let decibels = self.of.augment.volume * (2.0 * self.number(VOLUME) - 1.0);
        if decibels != 0.0 {
            let factor = 10f64.powf(decibels / 20.0) as f32;
            samples.iter_mut().for_each(|sample| *sample *= factor);
        }
    }

    /// Masks spans of the first `heard` frames, those of the recording itself, and spans of mel bins in these frames.
    pub fn mask(&self, frames: &mut Frames, heard: usize) {
        let augment = &self.of.augment;
        let heard = heard.min(frames.num_frames);
        let num_mels = frames.values.len() / frames.num_frames.max(1);
        let values = &mut frames.values[..heard * num_mels];
        let fill = match augment.mask_fill {
            MaskFill::Zero => 0.0,
            MaskFill::Min => values.iter().copied().reduce(f32::min).unwrap_or_default(),
            MaskFill::Mean => {
                let sum: f64 = values.iter().map(|value| f64::from(*value)).sum();
                (sum / values.len().max(1) as f64) as f32
            }
        };
        let of_time = (augment.mask_time_prob, augment.mask_time_length, augment.mask_time_min_masks);
        for first in self.spans(of_time, heard, TIME_MASKS) {
            values[first * num_mels..][..augment.mask_time_length * num_mels].fill(fill);
        }
        let of_bins = (augment.mask_feature_prob, augment.mask_feature_length, augment.mask_feature_min_masks);
        for first in self.spans(of_bins, num_mels, FEATURE_MASKS) {
            for row in values.chunks_exact_mut(num_mels) {
                row[first..][..augment.mask_feature_length].fill(fill);
            }
        }
    }

    /// Returns the begins of spans of `length` among `count`, as `_compute_mask_indices` of transformers draws them: no two begin
    /// together, and some may overlap.
    fn spans(&self, (prob, length, least): (f64, usize, usize), count: usize, axis: u64) -> Vec<usize> {
        let places = (count + 1).saturating_sub(length);
        if prob == 0.0 || places == 0 {
            return Vec::new();
        }
        let share = prob * count as f64 / length as f64;
        let wanted = ((share + self.number(axis)) as usize).max(least).min(count / length);
        let [seed, sample, at, purpose] = self.key;
        let mut rng = Rng::new(&[seed, sample, at, purpose, axis]);
        let mut begins: Vec<usize> = (0..places).collect();
        for at in 0..wanted {
            begins.swap(at, at + rng.below((places - at) as u64) as usize);
        }
        begins.truncate(wanted);
        begins
    }
}

fn power(samples: &[f32]) -> f64 {
    samples.iter().map(|sample| f64::from(*sample).powi(2)).sum::<f64>() / samples.len() as f64
}

/// Returns the recordings that `path` names, in a fixed order.
fn noises(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let names = files_below(path).into_iter().filter(|name| is_recording(name));
    let found: Vec<PathBuf> = names.map(|name| path.join(name)).collect();
    match found.is_empty() {
        true => Err(DataError::file(path, "data.audio.augment.noise.path: the folder has no recording")),
        false => Ok(found),
    }
}
