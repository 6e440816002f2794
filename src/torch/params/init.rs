//! Random initial values that depend on the seed and the parameter's name alone, not on order, sharding or device.

use loongforge_core::rng::Counter;
use loongforge_core::threads::with_threads;
use sha2::{Digest, Sha256};
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::thread;

/// Says how a parameter starts when it is not loaded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Mean 0 and this standard deviation.
    Normal(f64),
    Zeros,
    Ones,
    Constant(f64),
    /// Equal parts, one behind the other, each filled with one value.
    Parts(&'static [f64]),
    /// Between minus and plus this bound.
    Uniform(f64),
    /// The logarithm of a number between these two.
    LogUniform(f64, f64),
    /// The rows of a table of positions, this wide: see [`sinusoids`].
    Sinusoids(i64),
    /// The rows of a table of positions, this wide: see [`alternating`].
    Alternating(i64),
    /// Rows of so many (the second) different whole numbers below the first.
    Distinct(i64, i64),
}

/// Returns the values of parameter `name`, `len` of them.
pub(super) fn values(init: Init, seed: u64, name: &str, len: usize) -> Vec<f32> {
    let key = Counter::of(key_of(seed, name));
    match init {
        Init::Zeros => vec![0.0; len],
        Init::Ones => vec![1.0; len],
        Init::Uniform(bound) => each(len, |i| ((2.0 * key.unit(i) - 1.0) * bound) as f32),
        Init::Constant(value) => vec![value as f32; len],
        Init::Parts(values) => (0..len).map(|i| values[i * values.len() / len] as f32).collect(),
        Init::LogUniform(low, high) => each(len, |i| (low + (high - low) * key.unit(i)).ln() as f32),
        Init::Sinusoids(width) => sinusoids(len as i64 / width, width),
        Init::Alternating(width) => alternating(len as i64 / width, width),
        Init::Distinct(below, width) => (0..(len as i64 / width.max(1)) as u64)
            .flat_map(|row| distinct(&key, row, below as u64, width as u64))
            .collect(),
        Init::Normal(std) => each(len, |i| (key.normal(i) * std) as f32),
    }
}

/// Values of which a thread draws at least so many.
const PER_THREAD: usize = 1 << 16;

/// Returns value number `i` for each `i` below `len`, drawn on all cores: a value depends on its number alone.
fn each(len: usize, value: impl Fn(u64) -> f32 + Sync) -> Vec<f32> {
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let part = len.div_ceil(cores).max(PER_THREAD);
    let mut values = vec![0.0; len];
    let fill = |part: &mut [f32], first: usize| {
        part.iter_mut().zip(first as u64..).for_each(|(to, i)| *to = value(i));
    };
    let num_parts = len.div_ceil(part);
    {
        let parts = Mutex::new(values.chunks_mut(part).zip((0..).step_by(part)));
        let next = || parts.lock().expect("no thread panics with the lock").next();
        with_threads(num_parts, || {
            while let Some((part, first)) = next() {
                fill(part, first);
            }
        });
    }
    values
}

/// Returns the first `width` of a shuffle of the numbers below `below`.
fn distinct(key: &Counter, row: u64, below: u64, width: u64) -> Vec<f32> {
    let mut numbers: Vec<u64> = (0..below).collect();
    for at in 0..width.min(below) {
        let rest = below - at;
        let drawn = (key.unit(row * width + at) * rest as f64) as u64;
        numbers.swap(at as usize, (at + drawn.min(rest - 1)) as usize);
    }
    numbers.into_iter().take(width as usize).map(|number| number as f32).collect()
}

/// Returns sines and then cosines of each of `length` positions, row by row: channel `i` of each half turns `width / 2 - 1` steps from
/// one radian a position to 1 / 10 000 (Whisper's table, in float32 as there).
pub fn sinusoids(length: i64, width: i64) -> Vec<f32> {
    let half = width / 2;
    let step = (10_000f64.ln() / (half - 1).max(1) as f64) as f32;
    let angle = |row: i64, channel: i64| row as f32 * (-step * channel as f32).exp();
    let value = move |row: i64, channel: i64| match channel < half {
        true => angle(row, channel).sin(),
        false => angle(row, channel - half).cos(),
    };
    (0..length).flat_map(|row| (0..width).map(move |channel| value(row, channel))).collect()
}

/// Returns a sine and a cosine in turns of each of `length` positions, row by row: pair `i` turns with `10 000^(-i / (width / 2))`
/// radians a position (`Florence2VisionPositionalEmbeddingCosine1D`, in float32 as there).
pub fn alternating(length: i64, width: i64) -> Vec<f32> {
    let step = (10_000f64.ln() / (width / 2).max(1) as f64) as f32;
    let value = move |row: i64, channel: i64| {
        let angle = row as f32 * (-step * (channel / 2) as f32).exp();
        if channel % 2 == 0 { angle.sin() } else { angle.cos() }
    };
    (0..length).flat_map(|row| (0..width).map(move |channel| value(row, channel))).collect()
}

/// Returns draw number `i` of the stream `name` under `seed`: between 0 and 1.
pub fn uniform(seed: u64, name: &str, i: u64) -> f64 {
    Counter::of(key_of(seed, name)).unit(i)
}

/// Returns the number that tells parameter `name` from others under `seed`.
pub(super) fn key_of(seed: u64, name: &str) -> u64 {
    let digest = Sha256::new().chain_update(seed.to_le_bytes()).chain_update(name).finalize();
    u64::from_le_bytes(digest[..8].try_into().expect("a digest has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::{Init, values};

    #[test]
    fn normal_values_have_their_mean_and_deviation() {
        let drawn = values(Init::Normal(0.5), 7, "w", 40_000);
        let mean = drawn.iter().sum::<f32>() / 40_000.0;
        let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 40_000.0;
        assert!(mean.abs() < 0.01 && (variance.sqrt() - 0.5).abs() < 0.01, "{mean} {variance}");
    }

    #[test]
    fn a_value_depends_on_its_number_alone() {
        let many = values(Init::Normal(1.0), 3, "w", 5 * super::PER_THREAD + 7);
        let key = super::Counter::of(super::key_of(3, "w"));
        assert!(many.iter().enumerate().all(|(i, value)| *value == key.normal(i as u64) as f32));
    }

    #[test]
    fn rows_of_distinct_numbers() {
        let table = values(Init::Distinct(8, 3), 1, "w", 30);
        for row in table.chunks(3) {
            assert!(row.iter().all(|x| (0.0..8.0).contains(x) && x.fract() == 0.0), "{row:?}");
            assert!(row[0] != row[1] && row[0] != row[2] && row[1] != row[2], "{row:?}");
        }
        assert_ne!(table[..3], table[3..6]);
    }

    #[test]
    fn sines_and_cosines_take_turns() {
        let table = values(Init::Alternating(4), 1, "w", 8);
        let angles = [0.0f32, 0.0, 1.0, 0.01];
        let expected: Vec<f32> = angles.iter().flat_map(|angle| [angle.sin(), angle.cos()]).collect();
        assert!(table.iter().zip(&expected).all(|(one, other)| (one - other).abs() < 1e-7), "{table:?}");
    }

    #[test]
    fn seed_and_name_decide_and_a_prefix_is_a_prefix() {
        let values = |seed, name, len| values(Init::Uniform(1.0), seed, name, len);
        assert_eq!(values(1, "a", 4), values(1, "a", 9)[..4]);
        assert_ne!(values(1, "a", 4), values(2, "a", 4));
        assert_ne!(values(1, "a", 4), values(1, "b", 4));
    }
}
