//! A video on disk of which single frames are read: its tables are held, and a frame takes the bytes from the last one that
//! needs no other.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::SystemTime;

use image::RgbImage;

use super::boxes::Fields;
use super::stretch::Stretch;
use super::times::{FrameSpan, Times};
use super::track::{FRAGMENTED, NO_TABLE, Track};
use crate::data::decoder::MediaDecoder;
use crate::data::limits::Limits;
use crate::files;

/// Bytes of the tables of a file.
const MAX_TABLES: u64 = 256 << 20;
/// Bytes of the coded frames that are decoded for one frame.
const MAX_STRETCH: usize = 256 << 20;

/// A video, opened.
pub struct VideoFile {
    file: File,
    track: Track,
    times: Times,
}

/// Length and time of the last change of a file; where one of them is another, the file has changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FileState {
    pub len: u64,
    pub modified: SystemTime,
}

impl VideoFile {
    /// # Errors
    /// The reason: it cannot be read, or is no video that is decoded.
    pub fn open(path: &Path, limits: &Limits) -> Result<Self, String> {
        let mut file = files::open(path).map_err(|error| error.to_string())?;
        let file_len = file.metadata().map_err(|error| error.to_string())?.len();
        let moov = tables(&mut file, file_len)?;
        let track = Track::of_movie(&moov, usize::try_from(file_len).map_err(|error| error.to_string())?, limits)?;
        let times = Times::of_movie(&moov, track.samples.len())?;
        Ok(Self { file, track, times })
    }

    /// Returns the frames that are shown at these times, in seconds; each must be within `tolerance` seconds of one.
    ///
    /// # Errors
    /// The reason: there is no such frame, or it cannot be decoded.
    pub fn frames(
        &self,
        seconds: &[f64],
        tolerance: f64,
        decoder: &dyn MediaDecoder,
        limits: &Limits,
    ) -> Result<Vec<RgbImage>, String> {
        let samples = seconds.iter().map(|&time| self.times.at(time, tolerance)).collect::<Result<Vec<_>, _>>()?;
        self.decoded(&samples, decoder, limits)
    }

    /// Returns the number, in the order in which they are shown, of the frame at a time, in seconds.
    ///
    /// # Errors
    /// The reason: the nearest frame is off by more than `tolerance` seconds.
    pub fn number_at(&self, seconds: f64, tolerance: f64) -> Result<usize, String> {
        self.times.number_at(seconds, tolerance)
    }

    /// Returns the frame of a number, and those that are shown after it: `most` frames at most, and fewer where decoding begins anew.
    ///
    /// # Errors
    /// The reason: one of them cannot be decoded.
    pub fn run(
        &self,
        number: usize,
        most: usize,
        decoder: &dyn MediaDecoder,
        limits: &Limits,
    ) -> Result<Vec<RgbImage>, String> {
        self.decoded(&self.times.run(number, most), decoder, limits)
    }

    /// Returns length and time of the last change of the file; `None`: the system does not say.
    pub fn state(&self) -> Option<FileState> {
        let metadata = self.file.metadata().ok()?;
        Some(FileState { len: metadata.len(), modified: metadata.modified().ok()? })
    }

    /// Returns what these coded frames show.
    fn decoded(&self, samples: &[usize], decoder: &dyn MediaDecoder, limits: &Limits) -> Result<Vec<RgbImage>, String> {
        let mut frames: Vec<Option<RgbImage>> = vec![None; samples.len()];
        // Those that begin at the same frame are decoded together.
        let mut spans: Vec<(FrameSpan, Vec<usize>)> = Vec::new();
        for (request, &sample) in samples.iter().enumerate() {
            let span = self.times.span(sample);
            match spans.iter_mut().find(|(other, _)| other.first == span.first) {
                Some((other, requests)) => {
                    other.last = other.last.max(span.last);
                    requests.push(request);
                }
                None => spans.push((span, vec![request])),
            }
        }
        for (span, requests) in &spans {
            let places: Vec<usize> = requests.iter().map(|&at| self.times.place(span, samples[at])).collect();
            let mut taken = places.clone();
            taken.sort_unstable();
            taken.dedup();
            let (stretch, bytes) = self.stretch(span, taken)?;
            let decoded = decoder.stretch(&bytes, &stretch, limits)?;
            for (&request, place) in requests.iter().zip(&places) {
                let at = stretch.taken.binary_search(place).ok().and_then(|at| decoded.get(at));
                frames[request] = Some(at.ok_or("frames are missing")?.clone());
            }
        }
        Ok(frames.into_iter().flatten().collect())
    }

    /// Checks that a frame is shown within `tolerance` seconds of this time, in seconds.
    ///
    /// # Errors
    /// The reason: the nearest one is farther off.
    pub fn expect_frame(&self, seconds: f64, tolerance: f64) -> Result<(), String> {
        self.times.at(seconds, tolerance).map(drop)
    }

    /// Returns the frames per second between the first and the last one; 0 where they are shown at once.
    pub fn rate(&self) -> f64 {
        self.times.rate()
    }

    fn stretch(&self, span: &FrameSpan, taken: Vec<usize>) -> Result<(Stretch, Vec<u8>), String> {
        let samples = &self.track.samples[span.first..=span.last];
        let num_bytes: usize = samples.iter().map(|range| range.len()).sum();
        if num_bytes > MAX_STRETCH {
            return Err(format!(
                "decoding one frame would take {} MiB of the file, more than {} MiB",
                num_bytes >> 20,
                MAX_STRETCH >> 20
            ));
        }
        let mut bytes = vec![0; num_bytes];
        let mut rest = bytes.as_mut_slice();
        for range in samples {
            let (here, after) = rest.split_at_mut(range.len());
            self.file.read_exact_at(here, range.start as u64).map_err(|error| error.to_string())?;
            rest = after;
        }
        let lens = samples.iter().map(|range| range.len() as u32).collect();
        Ok((Stretch { codec: self.track.codec.clone(), lens, taken }, bytes))
    }

    /// Frames a second.
    pub fn fps(&self) -> f64 {
        self.track.fps
    }

    /// Returns the codec, as messages call it.
    pub fn codec(&self) -> &'static str {
        self.track.codec.name()
    }

    /// Returns the number of frames in the file.
    pub fn num_frames(&self) -> usize {
        self.track.samples.len()
    }
}

/// Returns the contents of the box `moov`, wherever it lies in the file.
fn tables(file: &mut File, file_len: u64) -> Result<Vec<u8>, String> {
    let (mut at, mut is_fragmented) = (0u64, false);
    while at < file_len {
        let mut header = [0; 16];
        file.seek(SeekFrom::Start(at)).map_err(|error| error.to_string())?;
        let mut read = 0;
        while read < header.len() {
            match file.read(&mut header[read..]).map_err(|error| error.to_string())? {
                0 => break,
                more => read += more,
            }
        }
        let mut fields = Fields(&header[..read]);
        let (Some(short), Some(name)) = (fields.u32(), fields.take(4)) else { break };
        let (size, begin) = match short {
            0 => (file_len - at, 8),
            1 => (fields.u64().unwrap_or_default(), 16),
            size => (u64::from(size), 8),
        };
        if size < begin || at.checked_add(size).is_none_or(|end| end > file_len) {
            break;
        }
        match name {
            b"moov" if size > MAX_TABLES => {
                return Err(format!("has tables of {} MiB, more than {} MiB", size >> 20, MAX_TABLES >> 20));
            }
            b"moov" => {
                let mut tables = vec![0; (size - begin) as usize];
                file.read_exact_at(&mut tables, at + begin).map_err(|error| error.to_string())?;
                return Ok(tables);
            }
            b"moof" => is_fragmented = true,
            _ => {}
        }
        at += size;
    }
    Err(if is_fragmented { FRAGMENTED } else { NO_TABLE }.to_owned())
}
