//! Frames that were decoded before anybody asked for them. Who reads a video frame by frame would else have each one decoded from the
//! last frame that needs no other, which may lie hundreds of frames before it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use image::RgbImage;

use crate::data::media::FileState;

/// Bytes of the frames that wait, those of all videos of a set together.
const MAX_BYTES: usize = 64 << 20;
/// Frames that wait.
const MAX_WAITING: usize = 1024;
/// Frames that are decoded at a time.
const MAX_RUN: usize = 32;
/// Requests that are remembered: several threads and cameras each read their frames one after the other.
const MAX_REMEMBERED: usize = 64;

/// The number of a video, and that of its frame in the order in which frames are shown.
pub type Place = (usize, usize);

/// The frames that wait, and the requests that were the last.
#[derive(Default)]
pub struct Ahead(Mutex<State>);

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    num_bytes: usize,
    /// The places that were asked for, and the bytes of their frames.
    asked: VecDeque<(Place, usize)>,
}

struct Waiting {
    place: Place,
    /// The state of the file that the frame was read from.
    file: FileState,
    frame: RgbImage,
}

impl Ahead {
    /// Takes the frame of a place, if it waits and its file has not changed since.
    pub fn take(&self, place: Place, file: FileState) -> Option<RgbImage> {
        self.lock().remove(place).filter(|waiting| waiting.file == file).map(|waiting| waiting.frame)
    }

    /// Returns how many frames to decode for a place: more than one if the frame before it was asked for lately.
    pub fn run(&self, (video, number): Place) -> usize {
        let state = self.lock();
        let before = number.checked_sub(1).map(|before| (video, before));
        let Some(&(_, num_bytes)) = state.asked.iter().find(|(place, _)| Some(*place) == before) else { return 1 };
        // Videos that are read side by side share the room.
        let mut videos: Vec<usize> = state.asked.iter().map(|((video, _), _)| *video).collect();
        videos.sort_unstable();
        videos.dedup();
        (MAX_BYTES / videos.len() / num_bytes.max(1)).clamp(1, MAX_RUN)
    }

    /// Remembers that a place was asked for, whose frame has so many bytes.
    pub fn remember(&self, place: Place, num_bytes: usize) {
        let mut state = self.lock();
        state.asked.push_back((place, num_bytes));
        if state.asked.len() > MAX_REMEMBERED {
            state.asked.pop_front();
        }
    }

    /// Keeps the frames of a file from a place on until they are asked for. Those that have waited longest make room.
    pub fn keep(&self, (video, number): Place, file: FileState, frames: impl Iterator<Item = RgbImage>) {
        let mut state = self.lock();
        for (number, frame) in (number..).zip(frames) {
            let place = (video, number);
            // Another thread may have decoded it too.
            state.remove(place);
            state.num_bytes += frame.as_raw().len();
            state.waiting.push_back(Waiting { place, file, frame });
        }
        while state.num_bytes > MAX_BYTES || state.waiting.len() > MAX_WAITING {
            let Some(oldest) = state.waiting.pop_front() else { break };
            state.num_bytes -= oldest.frame.as_raw().len();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remove(&mut self, place: Place) -> Option<Waiting> {
        let at = self.waiting.iter().position(|waiting| waiting.place == place)?;
        let removed = self.waiting.remove(at)?;
        self.num_bytes -= removed.frame.as_raw().len();
        Some(removed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    const FILE: FileState = FileState { len: 9, modified: SystemTime::UNIX_EPOCH };

    fn frames(count: usize, side: u32) -> impl Iterator<Item = RgbImage> {
        std::iter::repeat_n(RgbImage::new(side, side), count)
    }

    #[test]
    fn frames_wait_once_and_only_for_the_file_that_they_are_of() {
        let ahead = Ahead::default();
        ahead.keep((3, 7), FILE, frames(3, 2));
        // Again, as from another thread.
        ahead.keep((3, 8), FILE, frames(1, 2));
        assert_eq!(ahead.lock().num_bytes, 3 * 12);
        assert!(ahead.take((3, 6), FILE).is_none() && ahead.take((2, 7), FILE).is_none());
        assert!(ahead.take((3, 7), FILE).is_some() && ahead.take((3, 7), FILE).is_none());
        assert!(ahead.take((3, 8), FileState { len: 8, ..FILE }).is_none());
        assert!(ahead.take((3, 8), FILE).is_none() && ahead.take((3, 9), FILE).is_some());
        let state = ahead.lock();
        assert!(state.num_bytes == 0 && state.waiting.is_empty());
    }

    #[test]
    fn only_frames_behind_those_that_were_asked_for_are_decoded_ahead() {
        let ahead = Ahead::default();
        assert_eq!(ahead.run((0, 0)), 1);
        ahead.remember((0, 4), 12);
        assert_eq!([(0, 5), (0, 4), (0, 6), (1, 5)].map(|place| ahead.run(place)), [MAX_RUN, 1, 1, 1]);
        // Large frames of two videos share the room, and there are frames of which only one has room.
        ahead.remember((1, 9), MAX_BYTES / 8);
        assert_eq!((ahead.run((0, 5)), ahead.run((1, 10))), (MAX_RUN, 4));
        ahead.remember((2, 1), 2 * MAX_BYTES);
        assert_eq!(ahead.run((2, 2)), 1);
        (0..MAX_REMEMBERED).for_each(|number| ahead.remember((5, 100 + 2 * number), 12));
        assert_eq!(ahead.run((0, 5)), 1);
    }

    #[test]
    fn frames_that_wait_are_bounded_by_bytes_and_number() {
        let ahead = Ahead::default();
        ahead.keep((0, 0), FILE, frames(MAX_WAITING + 2, 1));
        assert!(ahead.take((0, 1), FILE).is_none() && ahead.take((0, 2), FILE).is_some());
        // Of 12 MiB each.
        ahead.keep((1, 0), FILE, frames(6, 2048));
        assert!(ahead.lock().num_bytes <= MAX_BYTES);
        assert!(ahead.take((0, MAX_WAITING + 1), FILE).is_none() && ahead.take((1, 5), FILE).is_some());
    }
}
