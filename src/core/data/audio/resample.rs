//! Changes the number of samples a second.

use std::cell::RefCell;

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{Fft, FixedSync, Resampler};

use super::samples::Samples;

/// Samples of a block, about; the length of the filter in the time domain, which decides how steep it is.
const BLOCK: usize = 1024;
/// Resamplers that a thread keeps: of its files' rate, of the two that other speeds stand for, and of its noise.
const MAX_KEPT: usize = 4;
/// Samples of the blocks, of both rates, of a resampler that is kept, which takes some 64 bytes for each. Rates without a common divisor
/// have blocks of a second.
const MAX_KEPT_SAMPLES: usize = 1 << 14;

struct Kept {
    from: u32,
    to: u32,
    resampler: Fft<f32>,
}

thread_local! {
    /// This thread's resamplers, the last used at the end. Making one takes as long as to resample some tenths of a second.
    static KEPT: RefCell<Vec<Kept>> = const { RefCell::new(Vec::new()) };
}

/// Returns the clip at `to` samples a second instead of `from`: ⌈L·to/from⌉ samples, in time with the old ones.
///
/// # Errors
/// The rates cannot be converted; both are named.
pub fn resample(samples: Samples, from: u32, to: u32) -> Result<Samples, String> {
    if from == to {
        return Ok(samples);
    }
    let wrong = |reason: String| format!("cannot resample from {from} to {to} Hz: {reason}");
    let (len, channels) = (samples.len(), 1);
    let mut resampler = match kept(from, to) {
        Some(resampler) => resampler,
        None => Fft::new(from as usize, to as usize, BLOCK, channels, FixedSync::Both)
            .map_err(|error| wrong(error.to_string()))?,
    };
    let input = InterleavedSlice::new(samples.as_slice(), channels, len).map_err(|error| wrong(error.to_string()))?;
    // Nothing is left in it of the clip before.
    let mut resampled = resampler.process_all(&input, len, None).map_err(|error| wrong(error.to_string()))?.take_data();
    keep(Kept { from, to, resampler });
    resampled.truncate((len as u64 * u64::from(to)).div_ceil(u64::from(from)) as usize);
    Ok(resampled.into())
}

/// Takes the resampler of these rates from those that the thread kept.
fn kept(from: u32, to: u32) -> Option<Fft<f32>> {
    KEPT.with_borrow_mut(|kept| {
        let at = kept.iter().position(|one| (one.from, one.to) == (from, to))?;
        Some(kept.remove(at).resampler)
    })
}

/// Keeps a resampler for the thread's next clip, in the place of the one that was not used for longest.
fn keep(one: Kept) {
    if one.resampler.fft_size_in() + one.resampler.fft_size_out() > MAX_KEPT_SAMPLES {
        return;
    }
    KEPT.with_borrow_mut(|kept| {
        if kept.len() == MAX_KEPT {
            kept.remove(0);
        }
        kept.push(one);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clip(len: usize) -> Samples {
        (0..len).map(|at| (at as f32 * 0.37).sin()).collect::<Vec<f32>>().into()
    }

    fn kept_rates() -> Vec<u32> {
        KEPT.with_borrow(|kept| kept.iter().map(|one| one.from).collect())
    }

    #[test]
    fn a_clip_is_the_same_whatever_the_thread_resampled_before() {
        let lens = [1, 700, 5000, 30_000];
        let fresh = lens.map(|len| std::thread::spawn(move || resample(clip(len), 44_100, 16_000).unwrap()));
        let fresh = fresh.map(|thread| thread.join().unwrap());
        for (len, fresh) in lens.into_iter().zip(&fresh).chain(lens.into_iter().zip(&fresh).rev()) {
            assert_eq!(&resample(clip(len), 44_100, 16_000).unwrap(), fresh, "{len}");
            resample(clip(900), 8_000, 16_000).unwrap();
        }
    }

    #[test]
    fn the_last_few_resamplers_are_kept_and_no_large_one() {
        for from in [8_000, 44_100, 22_050, 44_099, 8_000, 24_000, 32_000] {
            resample(clip(2000), from, 16_000).unwrap();
        }
        assert_eq!(kept_rates(), [22_050, 8_000, 24_000, 32_000]);
    }
}
