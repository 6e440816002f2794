//! The video track of a file: which bytes are which frame, and how many there are a second.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::boxes::{Boxes, Fields};
use super::h264::{Parameters, size};
use crate::data::limits::Limits;

/// Ten hours at 29 frames a second.
const MAX_SAMPLES: usize = 1 << 20;

/// Returns whether a file begins as MP4 and QuickTime files do.
pub fn is_mp4(bytes: &[u8]) -> bool {
    bytes.get(4..8).is_some_and(|name| name == b"ftyp")
}

/// A codec that is decoded, with what its decoder is told beside the frames.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Codec {
    H264(Parameters),
    /// The headers that come before the first frame.
    Av1(Vec<u8>),
}

impl Codec {
    /// Returns the name for messages, `H.264` or `AV1`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::H264(_) => "H.264",
            Self::Av1(_) => "AV1",
        }
    }

    /// Returns the feature of this package that has its decoder.
    pub fn feature(&self) -> &'static str {
        match self {
            Self::H264(_) => "mp4",
            Self::Av1(_) => "av1",
        }
    }
}

/// The video of an MP4 file.
#[derive(Debug, PartialEq)]
pub struct Track {
    /// The place of each coded frame in the file, in decoding order.
    pub samples: Vec<Range<usize>>,
    /// Frames a second, on average.
    pub fps: f64,
    pub codec: Codec,
}

impl Track {
    /// # Errors
    /// The reason: no video, another codec or kind of file, tables that lie, frames that are cut off or too large.
    pub fn read(bytes: &[u8], limits: &Limits) -> Result<Self, String> {
        let Some(moov) = Boxes(bytes).contents(b"moov") else {
            let fragmented = Boxes(bytes).contents(b"moof").is_some();
            return Err(if fragmented { FRAGMENTED } else { NO_TABLE }.to_owned());
        };
        Self::of_movie(moov, bytes.len(), limits)
    }

    /// Works like [`Track::read`] for the box `moov` of a file of `file_len` bytes.
    ///
    /// # Errors
    /// Fails as [`Track::read`] does.
    pub fn of_movie(moov: &[u8], file_len: usize, limits: &Limits) -> Result<Self, String> {
        // Its table may have the first frames, and fragments the others.
        if Boxes(moov).contents(b"mvex").is_some() {
            return Err(FRAGMENTED.to_owned());
        }
        let track = video(moov)?;
        let table = Boxes(track).path(&[b"mdia", b"minf", b"stbl"]).ok_or(WRONG)?;
        let codec = codec(Boxes(table).contents(b"stsd").ok_or(WRONG)?, limits)?;
        let samples = samples(Boxes(table), file_len)?;
        if samples.is_empty() {
            return Err("the video has no frames".to_owned());
        }
        let header = Boxes(track).path(&[b"mdia", b"mdhd"]).ok_or(WRONG)?;
        let fps = rate(header, Boxes(table), samples.len()).ok_or("the MP4 file has no frame rate")?;
        Ok(Self { samples, fps, codec })
    }
}

/// Returns the first video track of a box `moov`.
///
/// # Errors
/// The reason: there is none.
pub(super) fn video(moov: &[u8]) -> Result<&[u8], String> {
    let is_video =
        |track: &&[u8]| Boxes(track).path(&[b"mdia", b"hdlr"]).and_then(|handler| handler.get(8..12)) == Some(b"vide");
    let mut tracks = Boxes(moov).filter(|(name, _)| name == b"trak").map(|(_, track)| track);
    tracks.find(is_video).ok_or_else(|| "the MP4 file has no video track".to_owned())
}

pub(super) const WRONG: &str = "corrupt MP4: a table is missing or cut off";
pub(super) const NO_TABLE: &str = "no table of frames: truncated or corrupt MP4";
pub(super) const FRAGMENTED: &str =
    "a fragmented MP4 file, which is not supported: rewrite it (ffmpeg -i FILE -c copy NEW.mp4)";

const JOINED: &str = "joins clips of different coding (several sample descriptions), which is not supported: rewrite it (ffmpeg -i \
                      FILE NEW.mp4)";

/// Returns the codec and its parameters, from a sample description.
fn codec(description: &[u8], limits: &Limits) -> Result<Codec, String> {
    let (codec, entry) = Boxes(description.get(8..).ok_or(WRONG)?).next().ok_or(WRONG)?;
    // Behind the fields of every visual sample.
    let config = |name| entry.get(78..).and_then(|rest| Boxes(rest).contents(name)).ok_or(WRONG);
    let name = match &codec {
        b"avc1" | b"avc3" => {
            let parameters = Parameters::read(config(b"avcC")?).ok_or(WRONG)?;
            for set in &parameters.sequence_sets {
                let (width, height) = size(set)?;
                limits.check_size(width, height)?;
            }
            return Ok(Codec::H264(parameters));
        }
        b"av01" => {
            // AV1 in ISOBMFF §2.3: bit 6 of the third byte says more than 8 bits. A decoder checks the sizes of frames.
            let (fixed, headers) = config(b"av1C")?.split_at_checked(4).ok_or(WRONG)?;
            if fixed[2] & 0x40 != 0 {
                return Err(
                    "AV1 of more than 8 bits is not supported: convert it (ffmpeg -i FILE -pix_fmt yuv420p NEW.mp4)"
                        .to_owned(),
                );
            }
            let mut size = Fields(entry.get(24..28).ok_or(WRONG)?);
            let (width, height) = (size.u16().ok_or(WRONG)?, size.u16().ok_or(WRONG)?);
            limits.check_size(width.into(), height.into())?;
            return Ok(Codec::Av1(headers.to_vec()));
        }
        b"hvc1" | b"hev1" => "HEVC (H.265)",
        b"vvc1" | b"vvi1" => "VVC (H.266)",
        b"vp08" | b"vp09" => "VP9",
        b"mp4v" => "MPEG-4 Part 2",
        b"encv" => "encrypted video",
        other => return Err(format!("video of the codec {:?}, {ONLY}", String::from_utf8_lossy(other))),
    };
    Err(format!("video in {name}, {ONLY}"))
}

const ONLY: &str = "but only H.264 and AV1 are decoded: convert it (ffmpeg -i FILE -c:v libx264 -pix_fmt yuv420p NEW.mp4) or extract \
                    the frames (ffmpeg -i FILE -r 2 FOLDER/%06d.jpg)";

fn samples(table: Boxes<'_>, file_len: usize) -> Result<Vec<Range<usize>>, String> {
    let sizes = Sizes::read(table.contents(b"stsz").ok_or(WRONG)?).ok_or(WRONG)?;
    if sizes.len > MAX_SAMPLES {
        return Err(format!("has {} frames, more than {MAX_SAMPLES}", sizes.len));
    }
    let runs = Fields::table::<12>(table.contents(b"stsc").ok_or(WRONG)?).ok_or(WRONG)?;
    let offsets = Offsets::read(table).ok_or(WRONG)?;
    // Not by what the file says: constant sizes have no table that would bound their number.
    let (mut samples, mut num_bytes) = (Vec::new(), 0usize);
    for (index, run) in runs.iter().enumerate() {
        let mut run = Fields(run);
        let (first, per_chunk) = (run.u32().ok_or(WRONG)? as usize, run.u32().ok_or(WRONG)?);
        // Other frames would be decoded with the parameters of the first ones.
        if run.u32().ok_or(WRONG)? > 1 {
            return Err(JOINED.to_owned());
        }
        let next = runs.get(index + 1).and_then(|next| Fields(next).u32());
        let end = next.map_or(offsets.len(), |next| (next as usize).saturating_sub(1)).min(offsets.len());
        if per_chunk == 0 {
            return Err(WRONG.to_owned());
        }
        for chunk in first.max(1) - 1..end {
            let mut at = offsets.get(chunk).ok_or(WRONG)?;
            for _ in 0..per_chunk {
                let Some(len) = sizes.get(samples.len()) else { return Ok(samples) };
                let range = at..at.checked_add(len).ok_or(WRONG)?;
                if range.end > file_len {
                    return Err(format!("truncated: frame {} is not in the file", samples.len()));
                }
                at = range.end;
                // Frames that lie on top of each other would take long to decode.
                num_bytes = num_bytes.saturating_add(len);
                if num_bytes > file_len {
                    return Err("corrupt MP4: its frames take more bytes than the file has".to_owned());
                }
                samples.push(range);
            }
        }
    }
    match samples.len() == sizes.len {
        true => Ok(samples),
        false => Err(WRONG.to_owned()),
    }
}

/// Bytes of each sample.
struct Sizes<'a> {
    len: usize,
    /// The duration that all share, where they share one.
    constant: usize,
    each: &'a [[u8; 4]],
}

impl<'a> Sizes<'a> {
    fn read(contents: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(contents);
        fields.u32()?;
        let (constant, len) = (fields.u32()? as usize, fields.u32()? as usize);
        let each = if constant > 0 { &[] } else { fields.0.as_chunks().0.get(..len)? };
        Some(Self { len, constant, each })
    }

    fn get(&self, index: usize) -> Option<usize> {
        match self.constant {
            0 => self.each.get(index).map(|bytes| u32::from_be_bytes(*bytes) as usize),
            constant => (index < self.len).then_some(constant),
        }
    }
}

/// Says where chunks of samples begin in the file.
enum Offsets<'a> {
    Short(&'a [[u8; 4]]),
    Long(&'a [[u8; 8]]),
}

impl<'a> Offsets<'a> {
    fn read(table: Boxes<'a>) -> Option<Self> {
        match table.contents(b"stco") {
            Some(contents) => Fields::table(contents).map(Self::Short),
            None => Fields::table(table.contents(b"co64")?).map(Self::Long),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Short(offsets) => offsets.len(),
            Self::Long(offsets) => offsets.len(),
        }
    }

    fn get(&self, index: usize) -> Option<usize> {
        match self {
            Self::Short(offsets) => offsets.get(index).map(|bytes| u32::from_be_bytes(*bytes) as usize),
            Self::Long(offsets) => usize::try_from(u64::from_be_bytes(*offsets.get(index)?)).ok(),
        }
    }
}

/// Frames a second: their number by the sum of their durations.
fn rate(header: &[u8], table: Boxes<'_>, num_samples: usize) -> Option<f64> {
    let mut fields = Fields(header);
    let wide = fields.u32()? >> 24 == 1;
    fields.take(if wide { 16 } else { 8 })?;
    let per_second = fields.u32()?;
    let mut ticks = 0u64;
    for run in Fields::table::<8>(table.contents(b"stts")?)? {
        let mut run = Fields(run);
        ticks = ticks.checked_add(u64::from(run.u32()?) * u64::from(run.u32()?))?;
    }
    let fps = num_samples as f64 * f64::from(per_second) / ticks as f64;
    (fps.is_finite() && fps > 0.0).then_some(fps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_lie_on_top_of_each_other_are_refused() {
        let boxed = |name: &[u8; 4], numbers: &[u32]| {
            let contents: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
            [&(contents.len() as u32 + 8).to_be_bytes(), &name[..], &contents[..]].concat()
        };
        // Three frames of 60 bytes, each in a chunk that begins at the same place.
        let sizes = boxed(b"stsz", &[0, 60, 3]);
        let table = [sizes, boxed(b"stsc", &[0, 1, 1, 1, 1]), boxed(b"stco", &[0, 3, 10, 10, 10])].concat();
        assert_eq!(samples(Boxes(&table), 200), Ok(vec![10..70; 3]));
        assert!(samples(Boxes(&table), 100).unwrap_err().contains("more bytes than the file has"));
    }
}
