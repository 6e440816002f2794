//! Changes the number of samples a second.

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{Fft, FixedSync, Resampler};

use super::samples::Samples;

/// Samples of a block, about; the length of the filter in the time domain, which decides how steep it is.
const BLOCK: usize = 1024;

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
    let mut resampler = Fft::<f32>::new(from as usize, to as usize, BLOCK, channels, FixedSync::Both)
        .map_err(|error| wrong(error.to_string()))?;
    let input = InterleavedSlice::new(samples.as_slice(), channels, len).map_err(|error| wrong(error.to_string()))?;
    let mut resampled = resampler.process_all(&input, len, None).map_err(|error| wrong(error.to_string()))?.take_data();
    resampled.truncate((len as u64 * u64::from(to)).div_ceil(u64::from(from)) as usize);
    Ok(resampled.into())
}
