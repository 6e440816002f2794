//! Frames in the order in which a decoder gives them, and those of them that are taken.

use image::RgbImage;

use crate::data::limits::MAX_VIDEO_BYTES;
use crate::data::media::video::FEWER;

/// Pixels that are decoded for one sample, shown or not: ten minutes of 1080p at 30 frames a second take a minute or two.
const MAX_PIXELS: u64 = 1 << 35;

/// Frames in the order in which they are shown.
pub struct Shown<'a> {
    taken: &'a [usize],
    take: &'a mut dyn FnMut(RgbImage) -> Result<(), String>,
    num_taken: usize,
    /// The size of the first frame that was taken.
    size: Option<(usize, usize)>,
    index: usize,
    pixels: u64,
}

impl<'a> Shown<'a> {
    /// No frame was shown yet; those of the indices `taken` are given to `take`.
    pub fn new(taken: &'a [usize], take: &'a mut dyn FnMut(RgbImage) -> Result<(), String>) -> Self {
        Self { taken, take, num_taken: 0, size: None, index: 0, pixels: 0 }
    }

    /// Returns the number of frames that were shown, taken or not.
    pub fn num_shown(&self) -> usize {
        self.index
    }

    /// Returns whether every frame that is wanted has been taken.
    pub fn has_all(&self) -> bool {
        self.num_taken == self.taken.len()
    }

    /// Shows the next frame, which `write` makes rows of RGB of.
    ///
    /// # Errors
    /// The reason: its size is not the first one's, or frames have too many pixels.
    pub fn push(&mut self, (width, height): (usize, usize), write: impl Fn(&mut [u8])) -> Result<(), String> {
        let num_pixels = width as u64 * height as u64;
        self.pixels += num_pixels;
        if self.pixels > MAX_PIXELS {
            return Err(format!(
                "has more than {} billion pixels of frames; cut the video, or extract its frames (ffmpeg -i FILE -r \
                 2 FOLDER/%06d.jpg)",
                MAX_PIXELS >> 30
            ));
        }
        // An index may be taken several times.
        while self.taken.get(self.num_taken) == Some(&self.index) {
            if *self.size.get_or_insert((width, height)) != (width, height) {
                return Err(format!("frame {} is {width}×{height} pixels, unlike the first frame", self.index));
            }
            if (self.num_taken as u64 + 1) * num_pixels * 3 > MAX_VIDEO_BYTES {
                let limit = MAX_VIDEO_BYTES >> 20;
                return Err(format!("its frames take more than {limit} MiB; {FEWER}"));
            }
            let mut rgb = vec![0; width * height * 3];
            write(&mut rgb);
            let frame = RgbImage::from_raw(width as u32, height as u32, rgb).expect("a buffer of that size");
            (self.take)(frame)?;
            self.num_taken += 1;
        }
        self.index += 1;
        Ok(())
    }
}
