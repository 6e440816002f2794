//! Recordings as the tools look at them, without a model.

use std::path::Path;

use crate::config::AudioLimits;
use crate::data::audio::{AudioHeader, AudioSource, read_header};
use crate::data::decoder::MediaDecoder;
use crate::data::error::DataError;
use crate::data::locator::Locator;
use crate::data::processor::guarded;
use crate::text::plural;

/// Samples a second that recordings are decoded to: what every model so far takes.
const RATE: u32 = 16_000;
/// The limits without a model: a recording of any length that can be decoded is good.
const LIMITS: AudioLimits = AudioLimits { min_seconds: 0.0, max_seconds: 3600.0, max_tokens: None };

/// Decodes a recording, or the part of it that is meant, and returns its length in seconds.
///
/// # Errors
/// Named by its path: missing, corrupt, of a kind that is not decoded.
pub fn decode(source: &AudioSource, base: &Path, decoder: &dyn MediaDecoder) -> Result<f64, DataError> {
    let AudioSource { locator, segment } = source;
    let samples = decoder.sound(&locator.read_sound(base)?, RATE, &LIMITS, *segment);
    let samples = samples.map_err(|reason| wrong(locator, base, reason))?;
    Ok(samples.len() as f64 / f64::from(RATE))
}

/// Reads a recording's header.
///
/// # Errors
/// Named by its path: missing, no file of sound.
pub fn header(locator: &Locator, base: &Path) -> Result<AudioHeader, DataError> {
    let bytes = locator.read_sound(base)?;
    guarded(|| read_header(&bytes).map_err(|reason| wrong(locator, base, reason)))
}

/// Returns the length in seconds of a recording, or of the part that is meant: by its header, or decoded where that says nothing.
///
/// # Errors
/// Fails as [`header`] and [`decode`] do.
pub fn seconds(source: &AudioSource, base: &Path, decoder: &dyn MediaDecoder) -> Result<f64, DataError> {
    match header(&source.locator, base)?.seconds() {
        Some(seconds) => Ok(source.segment.seconds(seconds)),
        None => decode(source, base, decoder),
    }
}

/// Returns the line of `data inspect` about a recording.
///
/// # Errors
/// Fails as [`header`] does.
pub fn describe(source: &AudioSource, base: &Path) -> Result<String, DataError> {
    let (header, segment) = (header(&source.locator, base)?, source.segment);
    let seconds = header.seconds().map(|seconds| format!("{seconds:.2} s"));
    let end = segment.end.map_or("its end".to_owned(), |end| format!("{end} s"));
    let part = (!segment.is_whole()).then(|| format!("from {} s to {end}", segment.start));
    let AudioHeader { codec, rate, channels, .. } = header;
    let rate = rate.map(|rate| format!("{rate} Hz"));
    let channels = channels.map(|count| format!("{count} {}", plural("channel", count as u64)));
    let known = [Some(codec), rate, channels, seconds, part];
    Ok(known.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

fn wrong(locator: &Locator, base: &Path, reason: impl ToString) -> DataError {
    DataError::audio(Path::new(&locator.display(base)), reason)
}
