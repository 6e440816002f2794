//! Writes a video of H.264 into an MP4 file, with a frame that needs no other every other frame, so that any of them is read at
//! the cost of two.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

use image::RgbImage;
use openh264::OpenH264API;
use openh264::encoder::{Encoder, EncoderConfig, IntraFramePeriod, QpRange, RateControlMode, UsageType};
use openh264::formats::{RgbSliceU8, YUVBuffer};

/// Frames from one that needs no other to the next.
const PERIOD: u32 = 2;
/// The quantization of all frames; 0 is the finest, 51 the coarsest.
const QUANTIZER: u8 = 20;
/// Ticks of a frame, so that every rate has whole ones.
const TICKS: u32 = 512;

/// A video that is being written.
pub struct VideoWriter {
    file: BufWriter<File>,
    encoder: Encoder,
    size: (u32, u32),
    fps: u32,
    /// The parameter sets of the first frame.
    sets: Option<[Vec<u8>; 2]>,
    /// Bytes of each frame, and whether it needs no other.
    frames: Vec<(u32, bool)>,
    num_bytes: u64,
}

/// Bytes before the first frame: the box `ftyp`, and the header of `mdat`.
const HEAD: u64 = 32 + 16;

impl VideoWriter {
    /// Begins a file for frames of `width` by `height` pixels.
    ///
    /// # Errors
    /// The reason: sizes that H.264 does not have, too high a rate, or the file cannot be written.
    pub fn create(path: &Path, (width, height): (u32, u32), fps: u32) -> Result<Self, String> {
        if width % 2 + height % 2 > 0 || width.min(height) < 16 {
            return Err(format!("frames of {width}×{height}: H.264 needs even sides of 16 pixels or more"));
        }
        if fps.checked_mul(TICKS).is_none() {
            return Err(format!("{fps} frames per second are too many: at most {} can be written", u32::MAX / TICKS));
        }
        let config = EncoderConfig::new()
            .usage_type(UsageType::ScreenContentRealTime)
            .rate_control_mode(RateControlMode::Off)
            .qp(QpRange::new(QUANTIZER, QUANTIZER))
            .skip_frames(false)
            .scene_change_detect(false)
            .adaptive_quantization(false)
            .background_detection(false)
            .num_threads(1)
            .intra_frame_period(IntraFramePeriod::from_num_frames(PERIOD));
        let encoder =
            Encoder::with_api_config(OpenH264API::from_source(), config).map_err(|error| error.to_string())?;
        let mut file = BufWriter::new(File::create(path).map_err(|error| error.to_string())?);
        head(&mut file, 0).map_err(|error| error.to_string())?;
        Ok(Self { file, encoder, size: (width, height), fps, sets: None, frames: Vec::new(), num_bytes: 0 })
    }

    /// Returns the number of bytes of the frames so far.
    pub fn num_bytes(&self) -> u64 {
        self.num_bytes
    }

    /// Returns the number of frames so far.
    pub fn num_frames(&self) -> usize {
        self.frames.len()
    }

    /// Lets the next frame need no other.
    pub fn begin(&mut self) {
        self.encoder.force_intra_frame();
    }

    /// # Errors
    /// The reason: a frame of another size, or it cannot be encoded or written.
    pub fn add(&mut self, frame: &RgbImage) -> Result<(), String> {
        if frame.dimensions() != self.size {
            return Err(format!(
                "a frame of size {:?} does not fit into a video of size {:?}",
                frame.dimensions(),
                self.size
            ));
        }
        let (width, height) = (self.size.0 as usize, self.size.1 as usize);
        let yuv = YUVBuffer::from_rgb8_source(RgbSliceU8::new(frame.as_raw(), (width, height)));
        let stream = self.encoder.encode(&yuv).map_err(|error| error.to_string())?.to_vec();
        let (mut sets, mut bytes, mut is_sync) = ([Vec::new(), Vec::new()], Vec::new(), false);
        for unit in units(&stream) {
            match unit[0] & 31 {
                7 => sets[0] = unit.to_vec(),
                8 => sets[1] = unit.to_vec(),
                kind => {
                    is_sync |= kind == 5;
                    bytes.extend((unit.len() as u32).to_be_bytes());
                    bytes.extend(unit);
                }
            }
        }
        if bytes.is_empty() {
            return Err("the encoder dropped a frame".to_owned());
        }
        if self.sets.is_none() {
            self.sets = Some(sets);
        }
        self.file.write_all(&bytes).map_err(|error| error.to_string())?;
        self.num_bytes += bytes.len() as u64;
        self.frames.push((bytes.len() as u32, is_sync));
        Ok(())
    }

    /// Writes the tables.
    ///
    /// # Errors
    /// The reason: there are no frames, or the file cannot be written.
    pub fn finish(mut self) -> Result<(), String> {
        let tables = self.tables().ok_or("the video has no frames")?;
        let mut write = || -> io::Result<()> {
            self.file.write_all(&tables)?;
            self.file.seek(SeekFrom::Start(0))?;
            head(&mut self.file, self.num_bytes)?;
            self.file.flush()?;
            self.file.get_ref().sync_all()
        };
        write().map_err(|error| error.to_string())
    }

    fn tables(&self) -> Option<Vec<u8>> {
        let [sps, pps] = self.sets.as_ref().filter(|sets| sets.iter().all(|set| set.len() >= 4))?;
        let (width, height) = self.size;
        let (count, per_second) = (self.frames.len() as u32, self.fps * TICKS);
        let duration = count.checked_mul(TICKS)?;
        let numbers = |numbers: &[u32]| numbers.iter().flat_map(|it| it.to_be_bytes()).collect::<Vec<u8>>();
        let matrix = numbers(&[0x1_0000, 0, 0, 0, 0x1_0000, 0, 0, 0, 0x4000_0000]);
        let mut mvhd = numbers(&[0, 0, 0, per_second, duration, 0x1_0000]);
        // The volume, and what is reserved.
        mvhd.extend([1, 0]);
        mvhd.extend([0; 10]);
        mvhd.extend(&matrix);
        mvhd.extend(numbers(&[0, 0, 0, 0, 0, 0, 2]));
        let mut tkhd = numbers(&[7, 0, 0, 1, 0, duration, 0, 0, 0, 0]);
        tkhd.extend(&matrix);
        tkhd.extend(numbers(&[width << 16, height << 16]));
        let mdhd = numbers(&[0, 0, 0, per_second, duration, 0x55c4_0000]);
        let mut hdlr = numbers(&[0, 0]);
        hdlr.extend(b"vide");
        hdlr.extend(numbers(&[0, 0, 0]));
        hdlr.extend(b"video\0");
        let mut avcc = vec![1, sps[1], sps[2], sps[3], 0xff, 0xe1];
        for (at, set) in [sps, pps].into_iter().enumerate() {
            if at == 1 {
                avcc.push(1);
            }
            avcc.extend(u16::try_from(set.len()).ok()?.to_be_bytes());
            avcc.extend(set);
        }
        let mut avc1 = vec![0, 0, 0, 0, 0, 0, 0, 1];
        avc1.extend([0; 16]);
        avc1.extend(u16::try_from(width).ok()?.to_be_bytes());
        avc1.extend(u16::try_from(height).ok()?.to_be_bytes());
        avc1.extend(numbers(&[0x48_0000, 0x48_0000, 0]));
        avc1.extend([0, 1]);
        avc1.extend([0; 32]);
        avc1.extend([0, 24, 0xff, 0xff]);
        avc1.extend(boxed(b"avcC", &avcc));
        let stsd = [numbers(&[0, 1]), boxed(b"avc1", &avc1)].concat();
        let sync: Vec<u32> = (1..).zip(&self.frames).filter(|(_, (_, is_sync))| *is_sync).map(|(at, _)| at).collect();
        let lens: Vec<u32> = self.frames.iter().map(|(len, _)| *len).collect();
        let table = [
            boxed(b"stsd", &stsd),
            boxed(b"stts", &numbers(&[0, 1, count, TICKS])),
            boxed(b"stss", &numbers(&[&[0, sync.len() as u32][..], &sync].concat())),
            boxed(b"stsc", &numbers(&[0, 1, 1, count, 1])),
            boxed(b"stsz", &numbers(&[&[0, 0, count][..], &lens].concat())),
            boxed(b"stco", &numbers(&[0, 1, HEAD as u32])),
        ];
        let dinf = boxed(b"dinf", &boxed(b"dref", &[numbers(&[0, 1]), boxed(b"url ", &numbers(&[1]))].concat()));
        let minf = [boxed(b"vmhd", &numbers(&[1, 0, 0])), dinf, boxed(b"stbl", &table.concat())].concat();
        let mdia = [boxed(b"mdhd", &mdhd), boxed(b"hdlr", &hdlr), boxed(b"minf", &minf)].concat();
        let trak = [boxed(b"tkhd", &tkhd), boxed(b"mdia", &mdia)].concat();
        Some(boxed(b"moov", &[boxed(b"mvhd", &mvhd), boxed(b"trak", &trak)].concat()))
    }
}

/// Writes the boxes before the frames, which take so many bytes.
fn head(file: &mut impl Write, num_bytes: u64) -> io::Result<()> {
    file.write_all(&boxed(b"ftyp", b"isom\0\0\x02\0isomiso2avc1mp41"))?;
    file.write_all(&1u32.to_be_bytes())?;
    file.write_all(b"mdat")?;
    file.write_all(&(num_bytes + 16).to_be_bytes())
}

fn boxed(name: &[u8; 4], contents: &[u8]) -> Vec<u8> {
    [&(contents.len() as u32 + 8).to_be_bytes(), &name[..], contents].concat()
}

/// Returns the units of a stream, behind their start codes.
fn units(stream: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut begins = Vec::new();
    let mut at = 0;
    while at + 3 <= stream.len() {
        if stream[at..at + 3] == [0, 0, 1] {
            begins.push(at + 3);
            at += 3;
        } else {
            at += 1;
        }
    }
    let ends = begins.iter().skip(1).map(|&next| next - 3).chain([stream.len()]).collect::<Vec<_>>();
    // A start code may have one more zero before it.
    begins.into_iter().zip(ends).filter_map(|(begin, end)| {
        let unit = stream.get(begin..end)?;
        let last = unit.iter().rposition(|&byte| byte != 0)?;
        Some(&unit[..=last])
    })
}
