//! The log-mel spectrogram of a clip, frame by frame.

use std::ops::Range;
use std::sync::Arc;

use rustfft::num_complex::Complex;
use rustfft::{Fft, FftPlanner};

use super::filters::{Filter, filters};

/// The least power that is told from silence.
const FLOOR: f64 = 1e-10;
/// Decades below the loudest bin of a clip at which the others are cut.
const RANGE: f32 = 8.0;
/// Frames whose filters are computed side by side, and pairs of them, which are transformed together.
const LANES: usize = 2 * PAIRS;
const PAIRS: usize = 4;

/// Log-mel frames of a clip, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Frames {
    pub num_frames: usize,
    /// `[num_frames, num_mels]`, row by row.
    pub values: Vec<f32>,
}

/// Computes frames as `WhisperFeatureExtractor` does: a Hann window, the power of a Fourier transform, mel filters,
/// log10, at most eight decades below the loudest bin, `(x + 4) / 4`.
pub struct LogMel {
    fft: Arc<dyn Fft<f64>>,
    window: Vec<f64>,
    filters: Vec<Filter>,
    hop: usize,
}

impl LogMel {
    /// `n_fft` samples of a frame, `hop` samples from one frame to the next.
    pub fn new((n_fft, hop, num_mels): (usize, usize, usize), rate: u32) -> Self {
        let turn = 2.0 * std::f64::consts::PI / n_fft as f64;
        Self {
            fft: FftPlanner::new().plan_fft_forward(n_fft),
            window: (0..n_fft).map(|at| 0.5 - 0.5 * (turn * at as f64).cos()).collect(),
            filters: filters(num_mels, n_fft, rate),
            hop,
        }
    }

    /// Returns the numbers of a frame: one for each mel filter.
    pub fn num_mels(&self) -> usize {
        self.filters.len()
    }

    /// Returns the number of samples that are mirrored at both ends; a clip must have more, with its padding.
    pub fn num_mirrored(&self) -> usize {
        self.window.len() / 2
    }

    /// Returns the first `num_frames` frames of `samples`, padded with zeros to `padded` samples, which are more than
    /// [`LogMel::num_mirrored`]. The loudest bin is looked for in all of them.
    pub fn frames(&self, samples: &[f32], padded: usize, num_frames: usize) -> Frames {
        debug_assert!(samples.len() <= padded && padded > self.num_mirrored());
        let all = padded / self.hop;
        // Frames behind the clip are silent.
        let heard = (samples.len() + self.num_mirrored()).div_ceil(self.hop).min(all);
        let num_mels = self.num_mels();
        let silence = log10(FLOOR as f32);
        let mut values = Vec::with_capacity(heard.max(num_frames) * num_mels);
        let (mut scratch, mut loudest) = (self.scratch(), silence);
        for first in (0..heard).step_by(LANES) {
            let frames = first..heard.min(first + LANES);
            self.power(samples, padded, frames.clone(), &mut scratch);
            let begin = values.len();
            values.resize(begin + frames.len() * num_mels, 0.0);
            let rows = &mut values[begin..];
            self.mels(&scratch.power, &mut scratch.mels, rows);
            rows.iter_mut().for_each(|value| *value = log10(*value));
            loudest = loudest.max(largest(rows));
        }
        let least = loudest - RANGE;
        values.resize(num_frames * num_mels, silence);
        for value in &mut values {
            *value = (if *value > least { *value } else { least } + 4.0) / 4.0;
        }
        Frames { num_frames, values }
    }

    fn scratch(&self) -> Scratch {
        let zero = Complex::new(0.0, 0.0);
        let len = self.window.len();
        Scratch {
            frames: vec![zero; len * PAIRS],
            power: vec![[0.0; 2]; PAIRS * (len / 2 + 1)],
            mels: vec![[0.0; LANES]; self.num_mels()],
            fft: vec![zero; self.fft.get_inplace_scratch_len()],
        }
    }

    /// Computes the power of each bin of at most `LANES` frames. Two real frames are transformed as the parts of one complex frame; where
    /// their number is odd, the second part of the last pair is not read.
    fn power(&self, samples: &[f32], padded: usize, frames: Range<usize>, scratch: &mut Scratch) {
        let len = self.window.len();
        let num_pairs = frames.len().div_ceil(2);
        for (pair, to) in scratch.frames.chunks_exact_mut(len).take(num_pairs).enumerate() {
            let begin = ((frames.start + 2 * pair) * self.hop) as isize - self.num_mirrored() as isize;
            let end = begin + (self.hop + len) as isize;
            if begin >= 0 && end as usize <= samples.len() {
                let one = &samples[begin as usize..][..len];
                let other = &samples[begin as usize + self.hop..][..len];
                for (((to, &one), &other), window) in to.iter_mut().zip(one).zip(other).zip(&self.window) {
                    *to = Complex::new(f64::from(one) * window, f64::from(other) * window);
                }
            } else {
                // The padded clip is mirrored at its first and at its last sample.
                let last = padded as isize - 1;
                let sample = |at: isize| {
                    let at = if at > last { 2 * last - at } else { at }.unsigned_abs();
                    f64::from(samples.get(at).copied().unwrap_or(0.0))
                };
                for (at, (to, window)) in (begin..).zip(to.iter_mut().zip(&self.window)) {
                    *to = Complex::new(sample(at) * window, sample(at + self.hop as isize) * window);
                }
            }
        }
        self.fft.process_with_scratch(&mut scratch.frames[..num_pairs * len], &mut scratch.fft);
        // Bins of the two are the parts of their sum that are, and are not, their own conjugates mirrored.
        let num_bins = len / 2 + 1;
        let powers = scratch.power.chunks_exact_mut(num_bins);
        for (bins, power) in scratch.frames.chunks_exact(len).zip(powers).take(num_pairs) {
            power[0] = [bins[0].re * bins[0].re, bins[0].im * bins[0].im];
            for ((power, one), other) in power[1..].iter_mut().zip(&bins[1..]).zip(bins[1..].iter().rev()) {
                let (sum, rest) = ([one.re + other.re, one.im - other.im], [one.im + other.im, other.re - one.re]);
                *power = [0.25 * (sum[0] * sum[0] + sum[1] * sum[1]), 0.25 * (rest[0] * rest[0] + rest[1] * rest[1])];
            }
        }
    }

    /// Rows of the power of each mel, one for each frame that there is. Sums of all frames are taken side by side.
    fn mels(&self, power: &[[f64; 2]], mels: &mut [[f32; LANES]], rows: &mut [f32]) {
        let num_bins = power.len() / PAIRS;
        let pairs: [&[[f64; 2]]; PAIRS] = std::array::from_fn(|pair| &power[pair * num_bins..][..num_bins]);
        for (mel, filter) in self.filters.iter().enumerate() {
            let len = filter.weights.len();
            let pairs = pairs.map(|power| &power[filter.first..][..len]);
            let mut sums = [[0.0; 2]; PAIRS];
            for (at, &weight) in filter.weights.iter().enumerate() {
                let weight = f64::from(weight);
                for (sum, power) in sums.iter_mut().zip(pairs) {
                    sum[0] += weight * power[at][0];
                    sum[1] += weight * power[at][1];
                }
            }
            for (to, &sum) in mels[mel].iter_mut().zip(sums.as_flattened()) {
                *to = (if sum > FLOOR { sum } else { FLOOR }) as f32;
            }
        }
        for (lane, row) in rows.chunks_exact_mut(self.filters.len()).enumerate() {
            for (value, mel) in row.iter_mut().zip(&*mels) {
                *value = mel[lane];
            }
        }
    }
}

/// Returns the decimal logarithm of a normal number above 0, to 1.5e-6; many at a time are computed side by side.
fn log10(x: f32) -> f32 {
    const ROOT_OF_HALF: u32 = 0x3f35_04f3;
    // x = 2^exponent · mantissa, which is between the roots of 1/2 and of 2.
    let exponent = (x.to_bits().wrapping_sub(ROOT_OF_HALF) as i32) >> 23;
    let mantissa = f32::from_bits(x.to_bits().wrapping_sub((exponent as u32) << 23));
    // ln m = 2 artanh((m - 1) / (m + 1))
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    let s = t * t;
    let artanh = t * (1.0 + s * (1.0 / 3.0 + s * (1.0 / 5.0 + s * (1.0 / 7.0 + s * (1.0 / 9.0)))));
    exponent as f32 * std::f32::consts::LOG10_2 + 2.0 * std::f32::consts::LOG10_E * artanh
}

/// Returns the largest value, at least the least of all; in lanes, so that none waits for the one before.
fn largest(values: &[f32]) -> f32 {
    let larger = |one: f32, other: f32| if other > one { other } else { one };
    let (rows, rest) = values.as_chunks::<16>();
    let lanes = rows.iter().fold([f32::MIN; 16], |lanes, row| std::array::from_fn(|at| larger(lanes[at], row[at])));
    lanes.iter().chain(rest).copied().fold(f32::MIN, larger)
}

struct Scratch {
    /// Pairs of frames, one after the other; transformed, their bins.
    frames: Vec<Complex<f64>>,
    /// It holds, for each pair of frames, each bin's power in both.
    power: Vec<[f64; 2]>,
    /// It holds each mel bin's values of `LANES` consecutive frames.
    mels: Vec<[f32; LANES]>,
    fft: Vec<Complex<f64>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_and_the_largest() {
        let mut x = 1e-10_f32;
        while x < 1e9 {
            let error = f64::from(log10(x)) - f64::from(x).log10();
            // Half of the last place of a result near -10 is 5e-7.
            assert!(error.abs() < 1.5e-6, "{x}: {error}");
            x *= 1.000_37;
        }
        let values: Vec<f32> = (0..100).map(|at| -((at * 37 % 100) as f32)).collect();
        assert_eq!((largest(&values), largest(&values[1..8]), largest(&[])), (0.0, -11.0, f32::MIN));
    }
}
