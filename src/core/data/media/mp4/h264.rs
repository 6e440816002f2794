//! The parts of H.264 that have to be read before a decoder sees it: the parameter sets, the size of the frames, the units of a sample.
//! ITU-T H.264 §7.3.2.1 and ISO/IEC 14496-15.

use serde::{Deserialize, Serialize};

use super::boxes::Fields;

#[cfg(feature = "mp4")]
const SEQUENCE_SET: u8 = 7;
/// Profiles whose sequence sets tell of chroma and bit depth.
const HIGH: [u8; 13] = [100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135];

/// `AVCDecoderConfigurationRecord`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    /// Bytes of the length before each unit.
    pub length_size: usize,
    pub sequence_sets: Vec<Vec<u8>>,
    pub picture_sets: Vec<Vec<u8>>,
}

impl Parameters {
    /// Reads the parameter sets of an `avcC` box; `None`: it is torn.
    pub fn read(config: &[u8]) -> Option<Self> {
        let mut fields = Fields(config);
        fields.take(4)?;
        let length_size = usize::from(fields.u8()? & 3) + 1;
        let mut sets = |mask: u8| -> Option<Vec<Vec<u8>>> {
            let count = fields.u8()? & mask;
            (0..count).map(|_| fields.u16().and_then(|len| fields.take(usize::from(len)).map(<[u8]>::to_vec))).collect()
        };
        Some(Self { length_size, sequence_sets: sets(31)?, picture_sets: sets(255)? })
    }

    /// Returns a sample as a stream of units behind start codes, with the sets before it where `with_sets`.
    ///
    /// # Errors
    /// A unit is longer than the sample, or a sequence set in it does not pass `check`.
    #[cfg(feature = "mp4")]
    pub fn stream(
        &self,
        sample: &[u8],
        with_sets: bool,
        stream: &mut Vec<u8>,
        check: impl Fn(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        stream.clear();
        let mut push = |unit: &[u8]| {
            stream.extend([0, 0, 0, 1]);
            stream.extend(unit);
        };
        if with_sets {
            self.sequence_sets.iter().chain(&self.picture_sets).for_each(|set| push(set));
        }
        let mut fields = Fields(sample);
        while !fields.0.is_empty() {
            let len = fields
                .take(self.length_size)
                .map(|bytes| bytes.iter().fold(0, |len, &byte| len << 8 | usize::from(byte)));
            let unit = len.and_then(|len| fields.take(len)).ok_or("corrupt H.264: a unit is cut off")?;
            if unit.first().is_some_and(|first| first & 31 == SEQUENCE_SET) {
                check(unit)?;
            }
            push(unit);
        }
        Ok(())
    }
}

/// Reads width and height of the frames of a sequence set, in whole blocks of 16, before cropping.
///
/// # Errors
/// It is corrupt, or of a kind that is not decoded.
pub fn size(sequence_set: &[u8]) -> Result<(u32, u32), String> {
    const CORRUPT: &str = "corrupt H.264: a sequence parameter set is cut off";
    let (width, height, progressive, plain) = Bits::new(sequence_set).sequence_set().ok_or(CORRUPT)?;
    if !progressive || !plain {
        let what = if progressive { "more than 8 bits or chroma that is not 4:2:0" } else { "interlaced frames" };
        return Err(format!(
            "H.264 with {what} is not supported: convert it (ffmpeg -i FILE -pix_fmt yuv420p NEW.mp4)"
        ));
    }
    Ok((width, height))
}

/// Returns whether luma and chroma of a sequence set's frames have all values of a byte, as phones and recorders of screens write
/// them; a set that does not say has 16 to 235 and 240.
#[cfg(feature = "mp4")]
pub fn is_full_range(sequence_set: &[u8]) -> bool {
    let mut bits = Bits::new(sequence_set);
    bits.sequence_set().is_some() && bits.full_range() == Some(true)
}

/// Bits of a unit, most significant first, without the bytes that keep start codes out.
struct Bits {
    bytes: Vec<u8>,
    at: usize,
}

impl Bits {
    fn new(unit: &[u8]) -> Self {
        // The sets are short; nothing that is read lies further in.
        let unit = &unit[..unit.len().min(1024)];
        let mut bytes = Vec::with_capacity(unit.len());
        let mut zeros = 0;
        for &byte in unit {
            if zeros >= 2 && byte == 3 {
                zeros = 0;
                continue;
            }
            zeros = if byte == 0 { zeros + 1 } else { 0 };
            bytes.push(byte);
        }
        Self { bytes, at: 8 }
    }

    fn bit(&mut self) -> Option<u32> {
        let byte = *self.bytes.get(self.at / 8)?;
        let bit = byte >> (7 - self.at % 8) & 1;
        self.at += 1;
        Some(u32::from(bit))
    }

    fn bits(&mut self, count: u32) -> Option<u32> {
        (0..count).try_fold(0, |value, _| Some(value << 1 | self.bit()?))
    }

    /// Reads a number without a sign, `ue(v)` of the standard.
    fn unsigned(&mut self) -> Option<u32> {
        let mut zeros = 0;
        while self.bit()? == 0 {
            zeros += 1;
            if zeros > 31 {
                return None;
            }
        }
        Some((1u32 << zeros) - 1 + self.bits(zeros)?)
    }

    /// Reads a number with a sign, `se(v)` of the standard.
    fn signed(&mut self) -> Option<i32> {
        let code = self.unsigned()?;
        let half = code.div_ceil(2) as i32;
        Some(if code % 2 == 1 { half } else { -half })
    }

    fn scaling_list(&mut self, len: usize) -> Option<()> {
        let (mut last, mut next) = (8i32, 8i32);
        for _ in 0..len {
            if next != 0 {
                next = last.wrapping_add(self.signed()?).rem_euclid(256);
            }
            if next != 0 {
                last = next;
            }
        }
        Some(())
    }

    /// Reads width, height, whether not interlaced, whether in 8 bits and 4:2:0.
    fn sequence_set(&mut self) -> Option<(u32, u32, bool, bool)> {
        let profile = self.bits(8)? as u8;
        self.bits(16)?;
        self.unsigned()?;
        let mut plain = true;
        if HIGH.contains(&profile) {
            let chroma = self.unsigned()?;
            if chroma == 3 {
                self.bit()?;
            }
            let (luma_depth, chroma_depth) = (self.unsigned()?, self.unsigned()?);
            plain = chroma == 1 && luma_depth == 0 && chroma_depth == 0;
            self.bit()?;
            if self.bit()? == 1 {
                for list in 0..if chroma == 3 { 12 } else { 8 } {
                    if self.bit()? == 1 {
                        self.scaling_list(if list < 6 { 16 } else { 64 })?;
                    }
                }
            }
        }
        self.unsigned()?;
        match self.unsigned()? {
            0 => {
                self.unsigned()?;
            }
            1 => {
                self.bit()?;
                self.signed()?;
                self.signed()?;
                for _ in 0..self.unsigned()?.min(256) {
                    self.signed()?;
                }
            }
            _ => {}
        }
        self.unsigned()?;
        self.bit()?;
        let (width, height) = (self.unsigned()?, self.unsigned()?);
        let progressive = self.bit()? == 1;
        let blocks = |count: u32| count.checked_add(1)?.checked_mul(16);
        Some((blocks(width)?, blocks(height)?, progressive, plain))
    }

    /// Reads whether all values of a byte are used, from behind what [`Bits::sequence_set`] reads of frames that are not interlaced;
    /// `None`: the stream does not say.
    #[cfg(feature = "mp4")]
    fn full_range(&mut self) -> Option<bool> {
        self.bit()?;
        if self.bit()? == 1 {
            // Pixels that are cropped at each side.
            for _ in 0..4 {
                self.unsigned()?;
            }
        }
        if self.bit()? == 0 {
            return None;
        }
        // The shape of pixels, in numbers of its own behind 255.
        if self.bit()? == 1 && self.bits(8)? == 255 {
            self.bits(32)?;
        }
        if self.bit()? == 1 {
            self.bit()?;
        }
        if self.bit()? == 0 {
            return None;
        }
        self.bits(3)?;
        Some(self.bit()? == 1)
    }
}
