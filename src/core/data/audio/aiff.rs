//! AIFF and AIFF-C files of plain samples, which become WAV files of the same samples before they are read.

/// Bytes before the chunks: `FORM`, a size, `AIFF` or `AIFC`.
const FORM_HEADER: usize = 12;
/// Bytes before the samples of a WAV file, without `RIFF` and the size.
const WAV_HEADER: usize = 36;
/// The formats of a WAV file.
const INTEGERS: u16 = 1;
const FLOATS: u16 = 3;
/// The bias of the exponent of a number of 80 bits.
const BIAS: i32 = 16_383;

/// Says how samples are stored.
struct Layout {
    channels: u8,
    rate: u32,
    /// Samples of each channel, as the header says.
    num_samples: u32,
    /// The format that a WAV file of them has.
    format: u16,
    /// Bytes of a sample of one channel.
    width: usize,
    /// True if a sample begins with its lowest byte.
    is_little: bool,
    /// True if samples of 8 bits are 128 in silence, as those of a WAV file.
    is_unsigned: bool,
}

/// Returns the WAV file with the samples of an AIFF file; `None`: another kind of file.
///
/// # Errors
/// The reason: damaged or truncated, or of a compression that is not supported.
pub fn as_wav(bytes: &[u8]) -> Option<Result<Vec<u8>, String>> {
    let kind = bytes.strip_prefix(b"FORM")?.get(4..8)?;
    let is_packed = kind == b"AIFC";
    (is_packed || kind == b"AIFF").then(|| converted(&bytes[FORM_HEADER..], is_packed))
}

fn converted(mut rest: &[u8], is_packed: bool) -> Result<Vec<u8>, String> {
    let (mut common, mut sound) = (None, None);
    while let Some((name, contents, after)) = chunk(rest).filter(|_| common.is_none() || sound.is_none()) {
        match name {
            b"COMM" => common = Some(contents),
            b"SSND" => sound = Some(contents),
            _ => {}
        }
        rest = after;
    }
    let layout = Layout::of(common.ok_or("truncated, or damaged: has no COMM chunk")?, is_packed)?;
    layout.wav(sound.unwrap_or_default())
}

impl Layout {
    /// Reads the chunk `COMM`; that of AIFF-C says how samples are packed.
    fn of(common: &[u8], is_packed: bool) -> Result<Self, String> {
        let short = || "damaged: its COMM chunk is too short".to_owned();
        let (head, packing) = common.split_first_chunk::<18>().ok_or_else(short)?;
        let number =
            |from: usize, to: usize| head[from..to].iter().fold(0_u64, |all, &byte| all << 8 | u64::from(byte));
        let (channels, num_samples, bits) = (number(0, 2), number(2, 6) as u32, number(6, 8));
        let channels = u8::try_from(channels).ok().filter(|&channels| channels > 0);
        let channels = channels.ok_or_else(|| format!("has {} channels", number(0, 2)))?;
        let exponent = number(8, 10) as i32 - BIAS;
        // The highest bit stands for 2 to the power of the exponent; a half is rounded up.
        let rate = (0..32).contains(&exponent).then(|| ((number(10, 18) >> (62 - exponent)) + 1) >> 1);
        let rate = rate.and_then(|rate| u32::try_from(rate).ok()).ok_or("damaged: has no sample rate")?;
        let packing = match is_packed {
            true => *packing.first_chunk::<4>().ok_or_else(short)?,
            false => *b"NONE",
        };
        // Samples of other sizes are padded with zeros at their end.
        let whole = (bits as usize).div_ceil(8);
        let (format, width, is_little) = match &packing.map(|letter| letter.to_ascii_lowercase()) {
            b"none" | b"twos" => (INTEGERS, whole, false),
            b"sowt" => (INTEGERS, whole, true),
            b"in24" => (INTEGERS, 3, false),
            b"in32" => (INTEGERS, 4, false),
            b"42ni" => (INTEGERS, 3, true),
            b"23ni" => (INTEGERS, 4, true),
            b"raw " => (INTEGERS, 1, true),
            b"fl32" => (FLOATS, 4, false),
            b"fl64" => (FLOATS, 8, false),
            _ => {
                let name = packing.escape_ascii();
                return Err(format!("its compression `{name}` is not supported: convert the file to WAV or FLAC"));
            }
        };
        if format == INTEGERS && !(1..=4).contains(&width) {
            return Err(format!("has samples of {bits} bits; 1 to 32 are supported"));
        }
        let is_unsigned = packing.eq_ignore_ascii_case(b"raw ");
        Ok(Self { channels, rate, num_samples, format, width, is_little, is_unsigned })
    }

    /// Returns the WAV file of the chunk `SSND`: two numbers, the first of bytes to leave out, and the samples.
    fn wav(&self, sound: &[u8]) -> Result<Vec<u8>, String> {
        let (offset, rest) = sound.split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
        let begin = (u32::from_be_bytes(*offset) as usize).saturating_add(4);
        let data = rest.get(begin..).unwrap_or_default();
        let frame = self.width * usize::from(self.channels);
        let wanted = self.num_samples as usize * frame;
        let data = data.get(..wanted).ok_or_else(|| {
            let found = data.len() / frame;
            format!("truncated: {found} samples per channel, but its header says {}", self.num_samples)
        })?;
        let padding = data.len() % 2;
        let size = u32::try_from(WAV_HEADER + data.len() + padding).map_err(|_| "has more than 4 GiB of samples")?;
        let mut file = Vec::with_capacity(8 + size as usize);
        file.extend_from_slice(b"RIFF");
        file.extend_from_slice(&size.to_le_bytes());
        file.extend_from_slice(b"WAVEfmt \x10\0\0\0");
        file.extend_from_slice(&self.format.to_le_bytes());
        file.extend_from_slice(&u16::from(self.channels).to_le_bytes());
        file.extend_from_slice(&self.rate.to_le_bytes());
        file.extend_from_slice(&self.rate.saturating_mul(frame as u32).to_le_bytes());
        file.extend_from_slice(&(frame as u16).to_le_bytes());
        file.extend_from_slice(&(8 * self.width as u16).to_le_bytes());
        file.extend_from_slice(b"data");
        file.extend_from_slice(&(data.len() as u32).to_le_bytes());
        match self.width {
            1 if !self.is_unsigned => file.extend(data.iter().map(|sample| sample ^ 0x80)),
            width if !self.is_little => file.extend(data.chunks_exact(width).flat_map(|sample| sample.iter().rev())),
            _ => file.extend_from_slice(data),
        }
        file.resize(file.len() + padding, 0);
        Ok(file)
    }
}

/// Returns the name and the contents of the chunk that `bytes` begin with, as far as they are there, and what is behind it.
fn chunk(bytes: &[u8]) -> Option<(&[u8; 4], &[u8], &[u8])> {
    let (name, rest) = bytes.split_first_chunk::<4>()?;
    let (size, rest) = rest.split_first_chunk::<4>()?;
    let size = u32::from_be_bytes(*size) as usize;
    let contents = rest.get(..size).unwrap_or(rest);
    Some((name, contents, rest.get(size.next_multiple_of(2)..).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use crate::config::AudioLimits;
    use crate::data::audio::{Segment, decode_sound, read_header};

    const LIMITS: AudioLimits = AudioLimits { min_seconds: 0.0, max_seconds: 60.0, max_tokens: None };

    fn chunk(name: &[u8; 4], contents: &[u8]) -> Vec<u8> {
        let size = (contents.len() as u32).to_be_bytes();
        [&name[..], &size, contents, &[0][..contents.len() % 2]].concat()
    }

    /// Returns a file of 16 kHz; with a `packing` AIFF-C.
    fn file(packing: Option<&[u8; 4]>, bits: u16, channels: u16, num_samples: u32, samples: &[u8]) -> Vec<u8> {
        let rate = [0x40, 0x0c, 0xfa, 0, 0, 0, 0, 0, 0, 0];
        let sizes = [&channels.to_be_bytes()[..], &num_samples.to_be_bytes(), &bits.to_be_bytes(), &rate].concat();
        let common: Vec<u8> = sizes.into_iter().chain(packing.into_iter().flatten().copied()).collect();
        let sound = [&[0; 8][..], samples].concat();
        let kind = if packing.is_some() { b"AIFC" } else { b"AIFF" };
        let chunks = [chunk(b"COMM", &common), chunk(b"NAME", b"odd"), chunk(b"SSND", &sound)].concat();
        chunk(b"FORM", &[&kind[..], &chunks].concat())
    }

    fn decode(file: &[u8]) -> Result<Vec<f32>, String> {
        decode_sound(file, 16_000, &LIMITS, Segment::WHOLE).map(|samples| samples.to_vec())
    }

    fn levels() -> Vec<i16> {
        (0..1601).map(|at| (at * 997 % 60_000 - 30_000) as i16).collect()
    }

    #[test]
    fn samples_of_every_kind_are_those_that_were_written() {
        let levels = levels();
        let of = |bytes: &dyn Fn(i16) -> Vec<u8>| levels.iter().flat_map(|&level| bytes(level)).collect::<Vec<u8>>();
        let wide = |level: i16| i32::from(level) << 16;
        let real = |level: i16| f32::from(level) / 32_768.0;
        let exact: Vec<f32> = levels.iter().map(|&level| real(level)).collect();
        let coarse: Vec<f32> = levels.iter().map(|&level| f32::from(level >> 8) / 128.0).collect();
        let (big, little) = (of(&|level| level.to_be_bytes().into()), of(&|level| level.to_le_bytes().into()));
        let of_24 = of(&|level| wide(level).to_be_bytes()[..3].to_vec());
        let of_32 = of(&|level| wide(level).to_be_bytes().into());
        let of_8 = of(&|level| vec![level.to_be_bytes()[0]]);
        let unsigned: Vec<u8> = of_8.iter().map(|sample| sample ^ 0x80).collect();
        for (packing, bits, samples, expected) in [
            (None, 16, &big, &exact),
            (Some(b"NONE"), 16, &big, &exact),
            (Some(b"twos"), 16, &big, &exact),
            (Some(b"sowt"), 16, &little, &exact),
            // Of 12 bits in two bytes the lower four are none.
            (None, 12, &big, &exact),
            (None, 24, &of_24, &exact),
            (Some(b"in24"), 24, &of_24, &exact),
            (None, 32, &of_32, &exact),
            (Some(b"23ni"), 32, &of(&|level| wide(level).to_le_bytes().into()), &exact),
            (Some(b"FL32"), 32, &of(&|level| real(level).to_be_bytes().into()), &exact),
            (Some(b"fl64"), 64, &of(&|level| f64::from(real(level)).to_be_bytes().into()), &exact),
            (None, 8, &of_8, &coarse),
            (Some(b"raw "), 8, &unsigned, &coarse),
        ] {
            let file = file(packing, bits, 1, 1601, samples);
            let found = decode(&file).unwrap();
            let differ = found.iter().zip(expected).filter(|(one, other)| (*one - *other).abs() > 1e-6).count();
            assert_eq!((found.len(), differ), (1601, 0), "{packing:?} of {bits} bits");
            let header = read_header(&file).unwrap();
            assert_eq!((header.rate, header.channels, header.num_samples), (Some(16_000), Some(1), Some(1601)));
        }
        let stereo = decode(&file(None, 16, 2, 800, &big)).unwrap();
        assert_eq!((stereo.len(), stereo[3]), (800, (exact[6] + exact[7]) * 0.5));
    }

    #[test]
    fn files_that_are_damaged_or_compressed_are_refused() {
        let samples: Vec<u8> = levels().into_iter().flat_map(i16::to_be_bytes).collect();
        let whole = file(None, 16, 1, 1601, &samples);
        for len in 0..whole.len() {
            assert!(decode(&whole[..len]).is_err(), "{len}");
        }
        let mut no_rate = whole.clone();
        no_rate[28..30].fill(0);
        for (file, reason) in [
            (file(None, 16, 1, 1602, &samples), "AIFF: truncated: 1601 samples per channel, but its header says 1602"),
            (file(None, 16, 1, u32::MAX, &samples), "its header says 4294967295"),
            (file(Some(b"ima4"), 16, 1, 1601, &samples), "its compression `ima4` is not supported"),
            (file(None, 40, 1, 1601, &samples), "has samples of 40 bits; 1 to 32 are supported"),
            (file(None, 0, 1, 1601, &samples), "has samples of 0 bits"),
            (file(None, 16, 0, 1601, &samples), "has 0 channels"),
            (file(None, 16, 9, 100, &samples), "has 9 channels; 1 to 8 are supported"),
            (file(None, 16, 1, 0, &[]), "has no samples"),
            (no_rate, "has no sample rate"),
        ] {
            let told = decode(&file).unwrap_err();
            assert!(told.contains(reason), "{told}");
        }
    }
}
