//! The times at which the frames of a track are shown, and the frames at which decoding can begin. ISO/IEC 14496-12 §8.6.

use super::boxes::{Boxes, Fields};
use super::track::{WRONG, video};

/// The frames of a track by the time at which they are shown.
#[derive(Debug, PartialEq)]
pub struct Times {
    /// The time at which each coded frame is shown, in decoding order, in ticks.
    ticks: Vec<i64>,
    per_second: f64,
    /// Numbers of coded frames in the order in which they are shown.
    shown: Vec<u32>,
    /// Numbers of coded frames that need no other, ascending; `None`: all of them.
    sync: Option<Vec<u32>>,
}

/// Coded frames that are decoded, and the place of one of them in the order in which they are shown.
#[derive(Debug, PartialEq)]
pub struct FrameSpan {
    pub first: usize,
    pub last: usize,
}

impl Times {
    /// Reads the times of the first video track of a box `moov`, with so many coded frames.
    ///
    /// # Errors
    /// The reason: tables that lie, or an edit list of several parts.
    pub fn of_movie(moov: &[u8], num_samples: usize) -> Result<Self, String> {
        let track = video(moov)?;
        let table = Boxes(track).path(&[b"mdia", b"minf", b"stbl"]).ok_or(WRONG)?;
        let per_second = ticks_per_second(Boxes(track).path(&[b"mdia", b"mdhd"]).ok_or(WRONG)?).ok_or(WRONG)?;
        let movie = Boxes(moov).contents(b"mvhd").and_then(ticks_per_second).ok_or(WRONG)?;
        let mut ticks = decoding_times(Boxes(table), num_samples)?;
        if let Some(offsets) = Boxes(table).contents(b"ctts") {
            add_offsets(&mut ticks, offsets)?;
        }
        let edits = Boxes(track).path(&[b"edts", b"elst"]);
        let shift = edits.map_or(Ok(0.0), |edits| shift(edits, f64::from(per_second) / f64::from(movie)))?;
        // A table can say more than there are ticks: then no frame is near any time.
        ticks.iter_mut().for_each(|tick| *tick = tick.saturating_add(shift.round() as i64));
        let mut shown: Vec<u32> = (0..num_samples as u32).collect();
        shown.sort_by_key(|&sample| ticks[sample as usize]);
        let sync = Boxes(table).contents(b"stss").map(|sync| sync_samples(sync, num_samples)).transpose()?;
        Ok(Self { ticks, per_second: f64::from(per_second), shown, sync })
    }

    /// Returns the coded frame that is shown at a time, in seconds.
    ///
    /// # Errors
    /// The reason: the nearest one is off by more than `tolerance` seconds.
    pub fn at(&self, seconds: f64, tolerance: f64) -> Result<usize, String> {
        self.number_at(seconds, tolerance).map(|number| self.shown[number] as usize)
    }

    /// Works like [`Times::at`], but returns the number of the frame in the order in which they are shown.
    ///
    /// # Errors
    /// Fails as that function does.
    pub fn number_at(&self, seconds: f64, tolerance: f64) -> Result<usize, String> {
        let time = |place: usize| self.ticks[self.shown[place] as usize] as f64 / self.per_second;
        let after =
            self.shown.partition_point(|&sample| (self.ticks[sample as usize] as f64) < seconds * self.per_second);
        let near = [after.checked_sub(1), Some(after).filter(|&place| place < self.shown.len())];
        let nearest =
            near.into_iter().flatten().min_by(|&a, &b| (time(a) - seconds).abs().total_cmp(&(time(b) - seconds).abs()));
        let nearest = nearest.ok_or("the video has no frames")?;
        let off = (time(nearest) - seconds).abs();
        if off > tolerance {
            return Err(format!(
                "has no frame at {seconds:.4} s: the nearest is at {:.4} s, and {tolerance:.4} s are allowed",
                time(nearest)
            ));
        }
        Ok(nearest)
    }

    /// Returns the frames per second between the first and the last one; 0 where they are shown at once.
    pub fn rate(&self) -> f64 {
        let tick = |sample: Option<&u32>| sample.map_or(0.0, |&sample| self.ticks[sample as usize] as f64);
        let ticks = tick(self.shown.last()) - tick(self.shown.first());
        if ticks > 0.0 { (self.shown.len() - 1) as f64 * self.per_second / ticks } else { 0.0 }
    }

    /// Returns the coded frames that have to be decoded for `sample`.
    pub fn span(&self, sample: usize) -> FrameSpan {
        let mut first = self.sync_before(sample);
        // Frames that are shown before the one at which decoding begins may need frames before it.
        while first > 0 && (first + 1..=sample).any(|other| self.ticks[other] < self.ticks[first]) {
            first = self.sync_before(first - 1);
        }
        FrameSpan { first, last: sample }
    }

    /// Returns the coded frames that are shown one after the other from the frame of a number on: `most` of them at most, and none for
    /// which decoding begins elsewhere than for the first.
    pub fn run(&self, number: usize, most: usize) -> Vec<usize> {
        let shown = self.shown.get(number..).unwrap_or_default();
        let begin = shown.first().map(|&sample| self.span(sample as usize).first);
        let samples = shown.iter().take(most).map(|&sample| sample as usize);
        samples.take_while(|&sample| Some(self.span(sample).first) == begin).collect()
    }

    /// Returns the place of `sample` among the frames of a span in the order in which they are shown.
    pub fn place(&self, span: &FrameSpan, sample: usize) -> usize {
        (span.first..=span.last).filter(|&other| self.ticks[other] < self.ticks[sample]).count()
    }

    fn sync_before(&self, sample: usize) -> usize {
        let Some(sync) = &self.sync else { return sample };
        let after = sync.partition_point(|&first| first as usize <= sample);
        after.checked_sub(1).map_or(0, |at| sync[at] as usize)
    }
}

/// Ticks a second of a box `mdhd`, or of `mvhd`, which begins alike.
fn ticks_per_second(header: &[u8]) -> Option<u32> {
    let mut fields = Fields(header);
    let wide = fields.u32()? >> 24 == 1;
    fields.take(if wide { 16 } else { 8 })?;
    fields.u32().filter(|&per_second| per_second > 0)
}

fn decoding_times(table: Boxes<'_>, num_samples: usize) -> Result<Vec<i64>, String> {
    let mut ticks = Vec::with_capacity(num_samples);
    let mut now = 0i64;
    for run in Fields::table::<8>(table.contents(b"stts").ok_or(WRONG)?).ok_or(WRONG)? {
        let mut run = Fields(run);
        let (count, delta) = (run.u32().ok_or(WRONG)?, run.u32().ok_or(WRONG)?);
        // Not by what the table says: the number of frames is known.
        let left = num_samples - ticks.len();
        for _ in 0..(count as usize).min(left) {
            ticks.push(now);
            now = now.checked_add(i64::from(delta)).ok_or(WRONG)?;
        }
    }
    if ticks.len() == num_samples { Ok(ticks) } else { Err(WRONG.to_owned()) }
}

/// Adds what frames are shown later than they are decoded.
fn add_offsets(ticks: &mut [i64], offsets: &[u8]) -> Result<(), String> {
    let mut at = 0usize;
    for run in Fields::table::<8>(offsets).ok_or(WRONG)? {
        let mut run = Fields(run);
        let count = run.u32().ok_or(WRONG)? as usize;
        // Version 0 says that they are unsigned; files with negative ones exist in both.
        let offset = i64::from(run.u32().ok_or(WRONG)?.cast_signed());
        let end = at.checked_add(count).map_or(ticks.len(), |end| end.min(ticks.len()));
        ticks[at..end].iter_mut().for_each(|tick| *tick += offset);
        at = end;
    }
    Ok(())
}

/// Ticks by which an edit list makes frames later: an empty edit delays, another one begins at a later frame.
fn shift(edits: &[u8], ticks_per_movie_tick: f64) -> Result<f64, String> {
    let wide = Fields(edits).u32().ok_or(WRONG)? >> 24 == 1;
    let mut entries = Vec::new();
    match wide {
        true => {
            for entry in Fields::table::<20>(edits).ok_or(WRONG)? {
                let mut entry = Fields(entry);
                let (duration, start) = (entry.u64().ok_or(WRONG)?, entry.u64().ok_or(WRONG)?);
                entries.push((duration as f64, start.cast_signed()));
            }
        }
        false => {
            for entry in Fields::table::<12>(edits).ok_or(WRONG)? {
                let mut entry = Fields(entry);
                let (duration, start) = (entry.u32().ok_or(WRONG)?, entry.u32().ok_or(WRONG)?);
                entries.push((f64::from(duration), i64::from(start.cast_signed())));
            }
        }
    }
    match entries.as_slice() {
        [] => Ok(0.0),
        [(_, start)] if *start >= 0 => Ok(-(*start as f64)),
        [(delay, -1), (_, start)] if *start >= 0 => Ok(delay * ticks_per_movie_tick - *start as f64),
        _ => {
            Err("has an edit list of several parts, which is not supported: rewrite it (ffmpeg -i FILE NEW.mp4)"
                .to_owned())
        }
    }
}

/// Numbers of coded frames at which decoding can begin, from 0.
fn sync_samples(contents: &[u8], num_samples: usize) -> Result<Vec<u32>, String> {
    let mut sync = Vec::new();
    for number in Fields::table::<4>(contents).ok_or(WRONG)? {
        let number = u32::from_be_bytes(*number).checked_sub(1).filter(|&number| (number as usize) < num_samples);
        let number = number.ok_or(WRONG)?;
        if sync.last().is_some_and(|&last| last >= number) {
            return Err(WRONG.to_owned());
        }
        sync.push(number);
    }
    Ok(sync)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boxed(name: &[u8; 4], contents: &[u8]) -> Vec<u8> {
        [&(contents.len() as u32 + 8).to_be_bytes(), &name[..], contents].concat()
    }

    fn numbers(numbers: &[u32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
    }

    /// Returns two frames of ten ticks, of which a second has a hundred, behind an empty edit of `delay` ticks.
    fn movie(delay: u64) -> Vec<u8> {
        let clock = numbers(&[0, 0, 0, 100]);
        let (high, low) = ((delay >> 32) as u32, delay as u32);
        let edits = numbers(&[1 << 24, 2, high, low, u32::MAX, u32::MAX, 0x1_0000, 0, 20, 0, 0, 0x1_0000]);
        let handler = [numbers(&[0, 0]), b"vide".to_vec()].concat();
        let table = boxed(b"minf", &boxed(b"stbl", &boxed(b"stts", &numbers(&[0, 1, 2, 10]))));
        let media = [boxed(b"mdhd", &clock), boxed(b"hdlr", &handler), table].concat();
        let track = [boxed(b"edts", &boxed(b"elst", &edits)), boxed(b"mdia", &media)].concat();
        [boxed(b"mvhd", &clock), boxed(b"trak", &track)].concat()
    }

    #[test]
    fn an_edit_list_may_delay_frames_by_more_than_there_are_ticks() {
        let times = Times::of_movie(&movie(50), 2).unwrap();
        assert_eq!((times.at(0.5, 1e-4), times.at(0.6, 1e-4)), (Ok(0), Ok(1)));
        assert_eq!(times.rate(), 10.0);
        let far = Times::of_movie(&movie(u64::MAX), 2).unwrap();
        let error = far.at(0.5, 1.00393e-4).unwrap_err();
        assert!(error.contains("has no frame at 0.5000 s") && error.ends_with("and 0.0001 s are allowed"), "{error}");
    }
}
