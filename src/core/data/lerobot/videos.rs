//! The videos of a set that are open: a bounded number of them, those used last, and frames that are decoded ahead.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use image::RgbImage;

use super::ahead::Ahead;
use crate::data::decoder::MediaDecoder;
use crate::data::error::DataError;
use crate::data::limits::Limits;
use crate::data::media::VideoFile;

/// Videos that are open at a time; each has a file and its tables, a few hundred kB.
const MAX_OPEN: usize = 64;
/// Seconds by which a frame may be off the time that is asked for, as lerobot has it.
const TOLERANCE: f64 = 1e-4;

/// Share by which the rate of a video may differ from that of its set.
const SAME_RATE: f64 = 0.01;

/// Videos by number.
#[derive(Default)]
pub struct Videos {
    open: Mutex<VecDeque<(usize, Cell)>>,
    ahead: Ahead,
}

type Cell = Arc<OnceLock<Result<VideoFile, String>>>;

impl Videos {
    /// Returns frames of a video, of which `file` has the number and the path, at these times, in seconds.
    ///
    /// # Errors
    /// Named by the file: it cannot be read, has no frame there, or the frame cannot be decoded.
    pub fn frames(
        &self,
        file: (usize, &Path),
        seconds: &[f64],
        decoder: &dyn MediaDecoder,
        limits: &Limits,
    ) -> Result<Vec<RgbImage>, DataError> {
        self.ask(file, limits, |video| match seconds {
            [time] => self.frame((file.0, video), *time, decoder, limits).map(|frame| vec![frame]),
            _ => video.frames(seconds, tolerance(seconds), decoder, limits),
        })
    }

    /// Returns one frame of a video of this number; those that follow are decoded with it where frames are asked for one after the other.
    fn frame(
        &self,
        (number, video): (usize, &VideoFile),
        seconds: f64,
        decoder: &dyn MediaDecoder,
        limits: &Limits,
    ) -> Result<RgbImage, String> {
        let place = (number, video.number_at(seconds, tolerance(&[seconds]))?);
        let state = video.state();
        let frame = match state.and_then(|state| self.ahead.take(place, state)) {
            Some(frame) => frame,
            None => {
                let most = if state.is_some() { self.ahead.run(place) } else { 1 };
                let run = (most > 1).then(|| video.run(place.1, most, decoder, limits));
                // A frame is not refused for those behind it.
                let run = match run {
                    Some(Ok(run)) => run,
                    _ => video.run(place.1, 1, decoder, limits)?,
                };
                let mut run = run.into_iter();
                let frame = run.next().ok_or("frames are missing")?;
                if let Some(state) = state {
                    self.ahead.keep((number, place.1 + 1), state, run);
                }
                frame
            }
        };
        self.ahead.remember(place, frame.as_raw().len());
        Ok(frame)
    }

    /// Checks that a video has the frames of a whole episode: the next one begins at `next`, behind the last frame, which is at `last`
    /// seconds. A video with another rate than its set, which has `fps` frames a second, must have that frame; of a video with the same
    /// rate each frame tells for itself.
    ///
    /// # Errors
    /// Named by the file: it cannot be read, lacks the last frame, or another episode begins before it.
    pub fn expect_episode(
        &self,
        file: (usize, &Path),
        [last, fps]: [f64; 2],
        next: Option<f64>,
        limits: &Limits,
    ) -> Result<(), DataError> {
        self.ask(file, limits, |video| {
            let rate = video.rate();
            let is_same_rate = rate <= 0.0 || (rate / fps - 1.0).abs() < SAME_RATE;
            let reason = match next.filter(|next| *next < last + 0.5 / fps) {
                Some(next) => {
                    format!("the next episode begins at {next:.4} s, and the last frame of this one is at {last:.4} s")
                }
                None if is_same_rate => return Ok(()),
                None => match video.expect_frame(last, tolerance(&[last])) {
                    Err(reason) => format!("{reason}, where the last frame of the episode should be"),
                    Ok(()) => return Ok(()),
                },
            };
            Err(match is_same_rate {
                true => format!("{reason}: from_timestamp of one of them (meta/episodes) is wrong"),
                false => format!(
                    "{reason}: the video has {rate:.2} frames per second, and the set {fps} (fps of meta/info.json)"
                ),
            })
        })
    }

    /// Asks a video, which stays open for the next question.
    fn ask<T>(
        &self,
        (number, path): (usize, &Path),
        limits: &Limits,
        question: impl FnOnce(&VideoFile) -> Result<T, String>,
    ) -> Result<T, DataError> {
        let cell = self.cell(number);
        let video = cell.get_or_init(|| VideoFile::open(path, limits)).as_ref().map_err(Clone::clone);
        if video.is_err() {
            // It may be another time's: too many files were open, or a share did not answer.
            self.forget(&cell);
        }
        video.and_then(question).map_err(|reason| DataError::image(path, reason))
    }

    /// Lets whoever asks next for what is in this cell open it again.
    fn forget(&self, cell: &Cell) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, held)| !Arc::ptr_eq(held, cell));
    }

    fn cell(&self, number: usize) -> Cell {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let held = open.iter().rposition(|(held, _)| *held == number);
        let entry = held.and_then(|at| open.remove(at)).unwrap_or_else(|| (number, Cell::default()));
        let cell = entry.1.clone();
        open.push_back(entry);
        while open.len() > MAX_OPEN {
            open.pop_front();
        }
        cell
    }
}

/// Seconds by which frames may be off these times. Sets have times in float32, which rounds those of an episode of half an hour by more
/// than is allowed of others.
fn tolerance(seconds: &[f64]) -> f64 {
    TOLERANCE + seconds.iter().copied().fold(0.0, f64::max) * f64::from(f32::EPSILON) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounded_times_of_long_episodes_are_within_the_tolerance() {
        // Of 50 minutes at 30 frames per second.
        let off = |frame: u32| {
            let time = f64::from(frame) / 30.0;
            let stored = f64::from(time as f32);
            ((stored - time).abs(), tolerance(&[0.0, stored]))
        };
        assert!((0..90_000).all(|frame| off(frame).0 < off(frame).1));
        assert!((0..90_000).any(|frame| off(frame).0 > TOLERANCE));
        assert!(tolerance(&[10.0]) < 1.01 * TOLERANCE);
    }
}
