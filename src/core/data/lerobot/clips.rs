//! The videos of one camera while a set is written: episodes one after the other, in as many files as they fill.

use std::path::{Path, PathBuf};

use image::RgbImage;

use super::describe::{self, Placed};
use crate::data::error::DataError;
#[cfg(feature = "mp4")]
use crate::data::media::VideoWriter;

/// Bytes of a video, after which another one is begun.
#[cfg(feature = "mp4")]
const VIDEO_BYTES: u64 = 200 << 20;

/// The videos of a camera.
pub struct Clips {
    folder: PathBuf,
    key: String,
    size: (u32, u32),
    fps: u32,
    #[cfg(feature = "mp4")]
    video: Option<VideoWriter>,
    num_files: u64,
    /// Frames of the video before the current episode.
    before: usize,
}

impl Clips {
    /// Frames of `size`, columns and rows.
    pub fn new(folder: &Path, key: &str, size: (usize, usize), fps: u32) -> Self {
        Self {
            folder: folder.to_owned(),
            key: key.to_owned(),
            size: (size.0 as u32, size.1 as u32),
            fps,
            #[cfg(feature = "mp4")]
            video: None,
            num_files: 0,
            before: 0,
        }
    }

    fn path(&self, file: u64) -> PathBuf {
        let [chunk, file] = describe::place_of(file);
        self.folder.join(format!("videos/{}/chunk-{chunk:03}/file-{file:03}.mp4", self.key))
    }

    /// Adds a frame to the current episode.
    ///
    /// # Errors
    /// Named by the file: it cannot be encoded or written.
    #[cfg(feature = "mp4")]
    pub fn add(&mut self, frame: &RgbImage, is_first: bool) -> Result<(), DataError> {
        if is_first && self.video.as_ref().is_some_and(|video| video.num_bytes() > VIDEO_BYTES) {
            self.finish()?;
        }
        let path = self.path(if self.video.is_some() { self.num_files - 1 } else { self.num_files });
        let wrong = |reason: String| DataError::file(&path, reason);
        let video = match &mut self.video {
            Some(video) => video,
            none => {
                describe::make_parent(&path)?;
                self.num_files += 1;
                self.before = 0;
                none.insert(VideoWriter::create(&path, self.size, self.fps).map_err(wrong)?)
            }
        };
        if is_first {
            video.begin();
        }
        video.add(frame).map_err(wrong)
    }

    /// Says where the episode is that ends here.
    ///
    /// # Errors
    /// It has no frames.
    #[cfg(feature = "mp4")]
    pub fn end_episode(&mut self) -> Result<Placed, DataError> {
        let none = || DataError::file(&self.folder, format!("{} has no frames of the episode", self.key));
        let frames = self.video.as_ref().ok_or_else(none)?.num_frames();
        let seconds = |frames: usize| frames as f64 / f64::from(self.fps);
        let placed = Placed { file: self.num_files - 1, from: seconds(self.before), to: seconds(frames) };
        self.before = frames;
        Ok(placed)
    }

    /// Ends the video.
    ///
    /// # Errors
    /// Named by the file: it cannot be written.
    #[cfg(feature = "mp4")]
    pub fn finish(&mut self) -> Result<(), DataError> {
        match self.video.take() {
            Some(video) => {
                let path = self.path(self.num_files - 1);
                video.finish().map_err(|reason| DataError::file(&path, reason))
            }
            None => Ok(()),
        }
    }

    /// Fails always: without an encoder no feature can be a video.
    #[cfg(not(feature = "mp4"))]
    pub fn add(&mut self, _frame: &RgbImage, _is_first: bool) -> Result<(), DataError> {
        Err(DataError::file(
            &self.path(self.num_files),
            format!("cannot encode frames of {:?} at {} frames per second", self.size, self.fps),
        ))
    }

    /// Returns an empty place: without an encoder no frame was added.
    ///
    /// # Errors
    /// There are none.
    #[cfg(not(feature = "mp4"))]
    pub fn end_episode(&mut self) -> Result<Placed, DataError> {
        Ok(Placed { from: self.before as f64, ..Placed::default() })
    }

    /// Does nothing: without an encoder no file was begun.
    ///
    /// # Errors
    /// There are none.
    #[cfg(not(feature = "mp4"))]
    pub fn finish(&mut self) -> Result<(), DataError> {
        Ok(())
    }
}
