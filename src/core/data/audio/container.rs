//! Mends the parts of a file around its sound before the file is read.

use std::borrow::Cow;

use super::aiff;

/// Bytes before the chunks of a WAV file: `RIFF`, a size, `WAVE`.
const RIFF_HEADER: usize = 12;

/// Returns the file without ID3 tags in front, whose pictures may be larger than what is looked through for the sound; a WAV file that
/// was written into a pipe gets its sizes, and an AIFF file becomes a WAV file.
///
/// # Errors
/// The reason: a damaged AIFF file, or one of a compression that is not supported.
pub fn prepared(bytes: &[u8]) -> Result<Cow<'_, [u8]>, String> {
    let bytes = without_tags(bytes);
    match aiff::as_wav(bytes) {
        Some(wav) => wav.map(Cow::Owned).map_err(|reason| format!("AIFF: {reason}")),
        None => Ok(sized(bytes)),
    }
}

fn without_tags(mut bytes: &[u8]) -> &[u8] {
    while let Some(rest) = tag_len(bytes).and_then(|len| bytes.get(len..)).filter(|rest| !rest.is_empty()) {
        bytes = rest;
    }
    bytes
}

/// Bytes of the ID3v2 tag that the file begins with: a header of 10, a size of 7 bits a byte, and maybe a footer.
fn tag_len(bytes: &[u8]) -> Option<usize> {
    let header = bytes.first_chunk::<10>().filter(|header| header.starts_with(b"ID3"))?;
    let digits = header[6..].iter().all(|digit| *digit < 0x80).then_some(&header[6..])?;
    let len = digits.iter().fold(0, |len, &digit| len << 7 | usize::from(digit));
    Some(len + if header[5] & 0x10 == 0 { 10 } else { 20 })
}

/// A writer that cannot go back, as FFmpeg's into a pipe, leaves the size of the samples at 2³² - 1: they go on to the end.
fn sized(bytes: &[u8]) -> Cow<'_, [u8]> {
    let size_at = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    if !bytes.starts_with(b"RIFF") || bytes.get(8..RIFF_HEADER) != Some(b"WAVE") {
        return Cow::Borrowed(bytes);
    }
    let mut at = RIFF_HEADER;
    while let (Some(name), Some(size)) = (bytes.get(at..at + 4), size_at(at + 4)) {
        let begin = at + 8;
        if name == b"data" {
            let left = u32::try_from(bytes.len() - begin).ok().filter(|_| size == u32::MAX);
            return left.map_or(Cow::Borrowed(bytes), |left| {
                let mut own = bytes.to_vec();
                own[4..8].copy_from_slice(&(left + begin as u32 - 8).to_le_bytes());
                own[at + 4..begin].copy_from_slice(&left.to_le_bytes());
                Cow::Owned(own)
            });
        }
        at = begin + (size as usize).next_multiple_of(2);
    }
    Cow::Borrowed(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AudioLimits;
    use crate::data::audio::{Segment, decode_sound, read_header, wav};

    const LIMITS: AudioLimits = AudioLimits { min_seconds: 0.0, max_seconds: 60.0, max_tokens: None };

    fn ramp() -> Vec<f32> {
        (0..3001).map(|at| at as f32 / 4000.0).collect()
    }

    #[test]
    fn a_wav_file_from_a_pipe_goes_on_to_its_end() {
        let file = wav(&ramp(), 1, 16_000);
        let mut piped = file.clone();
        piped[4..8].fill(0xff);
        piped[40..44].fill(0xff);
        let decode = |file: &[u8]| decode_sound(file, 16_000, &LIMITS, Segment::WHOLE);
        assert_eq!(prepared(&piped).unwrap(), file);
        assert_eq!(decode(&piped).unwrap(), decode(&file).unwrap());
        assert_eq!(read_header(&piped).unwrap(), read_header(&file).unwrap());
        // Half of a sample at the end is none, and another size is believed.
        assert_eq!(decode(&piped[..piped.len() - 1]).unwrap().len(), 3000);
        assert!(decode(&file[..file.len() - 1]).unwrap_err().contains("truncated"));
        for len in 0..50 {
            assert!(matches!(prepared(&file[..len]), Ok(Cow::Borrowed(_))), "{len}");
        }
    }

    #[test]
    fn tags_of_any_size_are_passed_over() {
        let file = wav(&ramp(), 1, 16_000);
        let tag = |len: usize, footer: bool| {
            let digits = [21, 14, 7, 0].map(|shift| (len >> shift & 0x7f) as u8);
            let header = [b"ID3\x04\x00".as_slice(), &[if footer { 0x10 } else { 0 }], &digits].concat();
            [header, vec![b'x'; len + if footer { 10 } else { 0 }]].concat()
        };
        // A picture of 3 MB, and a second tag behind it.
        let tagged = [tag(3_000_000, false), tag(5, true), file.clone()].concat();
        assert_eq!(prepared(&tagged).unwrap(), file);
        assert_eq!(decode_sound(&tagged, 16_000, &LIMITS, Segment::WHOLE).unwrap().len(), 3001);
        let only = tag(100, false);
        assert!(
            decode_sound(&only, 16_000, &LIMITS, Segment::WHOLE).unwrap_err().contains("not a supported audio file")
        );
        assert!(decode_sound(b"", 16_000, &LIMITS, Segment::WHOLE).unwrap_err().contains("empty file"));
    }
}
