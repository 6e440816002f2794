//! Sound: files to samples, and samples to the log-mel frames that an audio tower takes.
//!
//! ```text
//! file ─ decode ─ one channel ─ resample ─ 16 kHz ─ (changes) ─ log-mel ─ frames [frames, bins]
//! ```
//!
//! The front-end equals `WhisperFeatureExtractor` of transformers 5.17, for each clip alone: what a clip becomes does not
//! depend on the clips beside it.

mod aiff;
mod augment;
#[cfg(test)]
mod augment_tests;
mod container;
mod decode;
mod family;
mod filters;
mod mel;
mod pcm;
mod processor;
mod resample;
mod samples;
mod segment;
mod settings;
#[cfg(test)]
pub(super) mod tests;
mod wav;

pub use augment::{SoundChange, SoundChanges};
pub use decode::{AudioHeader, NO_SOUND, decode_sound, max_decode_seconds, read_header};
pub use family::{AudioFamily, Framing, FrontEnd};
pub use mel::{Frames, LogMel};
pub use processor::AudioProcessor;
pub use resample::resample;
pub use samples::Samples;
pub use segment::{AudioSource, Segment};
pub use settings::AudioSettings;
pub use wav::wav;
