//! WAV files of whole 16-bit samples, which are read as they lie. Whatever else a file may be or lack is left to the decoder.

/// Bytes of a sample of one channel.
const SAMPLE: usize = 2;
/// The format of samples that are plain numbers.
const PLAIN: u16 = 1;
const SCALE: f32 = 1.0 / 32_768.0;

/// A WAV file of 16-bit samples.
pub struct Pcm<'a> {
    pub rate: u32,
    pub channels: usize,
    /// The channels of a sample follow each other.
    samples: &'a [[u8; SAMPLE]],
}

impl<'a> Pcm<'a> {
    /// `None`: another kind of file, one that may be damaged, or one with chunks that say more of its samples.
    pub fn of(bytes: &'a [u8]) -> Option<Self> {
        let riff = bytes.strip_prefix(b"RIFF")?;
        let (size, rest) = riff.split_first_chunk()?;
        let body = rest.get(..u32::from_le_bytes(*size) as usize)?.strip_prefix(b"WAVE")?;
        let (format, mut rest) = chunk(body, b"fmt ")?;
        let number = |at: usize| Some(u16::from_le_bytes(*format.get(at..)?.first_chunk()?));
        let rate = u32::from_le_bytes(*format.get(4..)?.first_chunk()?);
        let (channels, align) = (usize::from(number(2)?), usize::from(number(12)?));
        if format.len() != 16 || number(0)? != PLAIN || number(14)? != 16 || channels == 0 || align != channels * SAMPLE
        {
            return None;
        }
        while let Some((_, after)) = chunk(rest, b"LIST") {
            rest = after;
        }
        let (data, _) = chunk(rest, b"data")?;
        let (samples, odd) = data.as_chunks();
        let is_whole = odd.is_empty() && samples.len().is_multiple_of(channels) && !samples.is_empty();
        is_whole.then_some(Self { rate, channels, samples })
    }

    /// Returns the number of samples of each channel.
    pub fn num_samples(&self) -> u64 {
        (self.samples.len() / self.channels) as u64
    }

    /// Appends the mean of the channels of samples `from..until`.
    pub fn mean(&self, from: usize, until: usize, to: &mut Vec<f32>) {
        let level = |sample: &[u8; SAMPLE]| f32::from(i16::from_le_bytes(*sample)) * SCALE;
        let samples = &self.samples[from * self.channels..until * self.channels];
        match self.channels {
            1 => to.extend(samples.iter().map(level)),
            // With a number known before, means are computed side by side.
            2 => to.extend(samples.as_chunks::<2>().0.iter().map(|[left, right]| (level(left) + level(right)) * 0.5)),
            _ => {
                let scale = 1.0 / self.channels as f32;
                let mean = |frame: &[[u8; SAMPLE]]| frame.iter().map(level).sum::<f32>() * scale;
                to.extend(samples.chunks_exact(self.channels).map(mean));
            }
        }
    }
}

/// Returns the contents of the chunk that `bytes` begin with, and what is behind it, if it has that name and is there as a whole.
fn chunk<'a>(bytes: &'a [u8], name: &[u8; 4]) -> Option<(&'a [u8], &'a [u8])> {
    let (size, rest) = bytes.strip_prefix(name)?.split_first_chunk()?;
    let size = u32::from_le_bytes(*size) as usize;
    let contents = rest.get(..size)?;
    Some((contents, rest.get(size.next_multiple_of(2)..).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AudioLimits;
    use crate::data::audio::{Segment, decode_sound, wav};

    const LIMITS: AudioLimits = AudioLimits { min_seconds: 0.0, max_seconds: 1.0, max_tokens: None };

    /// Returns a file that says the same in the longer header, which the decoder reads.
    fn longer(file: &[u8]) -> Vec<u8> {
        let mut longer = [&file[..36], &[0, 0], &file[36..]].concat();
        longer[4] += 2;
        longer[16] = 18;
        longer
    }

    #[test]
    fn samples_and_errors_are_those_of_the_decoder() {
        let wave: Vec<f32> = (0..9000).map(|at| (at as f32 * 0.37).sin() * 0.9).collect();
        let ends = [-1.0, 1.0, 0.0].repeat(400);
        for (samples, channels, rate) in
            [(&wave, 1, 16_000), (&wave, 2, 16_000), (&wave, 3, 8000), (&ends, 1, 16_000), (&ends, 8, 44_100)]
        {
            let file = wav(samples, channels, rate);
            let other = longer(&file);
            let mut listed = [&file[..36], b"LIST\x03\0\0\0abc\0", &file[36..]].concat();
            listed[4] += 12;
            assert!(Pcm::of(&file).is_some() && Pcm::of(&listed).is_some() && Pcm::of(&other).is_none());
            let segments =
                [(0.0, None), (0.01, Some(0.021)), (0.005, None), (0.0, Some(0.01)), (0.0, Some(5.0)), (7.0, None)];
            for (start, end) in segments {
                let of = |file: &[u8]| decode_sound(file, 16_000, &LIMITS, Segment::new(start, end).unwrap());
                assert_eq!(of(&file), of(&other), "{channels} channels, {start} to {end:?}");
                assert_eq!(of(&file), of(&listed), "{channels} channels, {start} to {end:?}");
            }
        }
        for (file, reason) in [
            (wav(&wave, 1, 4000), "s or more, more than data.audio.max_seconds = 1"),
            (wav(&wave, 9, 16_000), "9 channels; 1 to 8 are supported"),
            (wav(&wave, 1, 3000), "has a sample rate of 3000 Hz; 4000 to 192000 are supported"),
            (wav(&wave, 1, 0), "has a sample rate of 0 Hz; 4000 to 192000 are supported"),
            (wav(&[], 1, 16_000), "has no samples"),
        ] {
            let of = |file: &[u8]| decode_sound(file, 16_000, &LIMITS, Segment::WHOLE);
            let told = of(&file).unwrap_err();
            assert!(told.contains(reason), "{told}");
            assert_eq!(Err(told), of(&longer(&file)));
        }
    }

    #[test]
    fn what_is_not_plain_or_not_whole_is_left_to_the_decoder() {
        let file = wav(&[0.5; 100], 2, 16_000);
        assert_eq!(Pcm::of(&file).unwrap().num_samples(), 50);
        let changed = |at: usize, byte: u8| {
            let mut file = file.clone();
            file[at] = byte;
            file
        };
        // The size of the whole, the format, the channels, the bits and the size of the samples.
        for other in
            [changed(4, 255), changed(20, 3), changed(22, 3), changed(34, 24), changed(40, 199), changed(40, 198)]
        {
            assert!(Pcm::of(&other).is_none());
        }
        let fact = [&file[..36], b"fact\x04\0\0\0\x02\0\0\0", &file[36..]].concat();
        assert!(Pcm::of(&fact).is_none());
        for len in 0..file.len() {
            assert!(Pcm::of(&file[..len]).is_none(), "{len}");
        }
    }
}
