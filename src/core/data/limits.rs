//! Describes how large a picture or a frame may be: what a file's header claims is held against this before anything is
//! allocated.

use serde::{Deserialize, Serialize};

use crate::config::ImageLimits;

/// The limit of Hugging Face's `smart_resize`.
pub const MAX_ASPECT_RATIO: f64 = 200.0;
/// Memory that one picture may take while it is decoded, and all frames of an animation.
pub const MAX_PICTURE_BYTES: u64 = 512 << 20;
/// Bytes of all files of a sample in an archive, or of a pack.
pub const MAX_SAMPLE_BYTES: u64 = 512 << 20;
/// Memory that the frames taken of a video may take: 768 frames of 1280×960.
pub const MAX_VIDEO_BYTES: u64 = 3 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The limit of the longer side, in pixels.
    pub max_side: usize,
    /// The limit of pixels of the whole picture, or of one frame.
    pub max_pixels: usize,
}

impl Limits {
    /// The limits of pictures that were made here.
    pub const NONE: Self = Self { max_side: usize::MAX, max_pixels: usize::MAX };

    /// # Errors
    /// The reason: a side of 0 or too long, too many pixels, too elongated.
    pub fn check_size(&self, width: u32, height: u32) -> Result<(), String> {
        let is = format!("is {width}×{height} pixels");
        if width == 0 || height == 0 {
            return Err(is);
        }
        if width.max(height) as usize > self.max_side {
            return Err(format!("{is}, more than data.image.max_side = {}", self.max_side));
        }
        if u64::from(width) * u64::from(height) > self.max_pixels as u64 {
            return Err(format!("{is}, more than data.image.max_decoded_pixels = {}", self.max_pixels));
        }
        if f64::from(width.max(height)) / f64::from(width.min(height)) > MAX_ASPECT_RATIO {
            return Err(format!("{is}, an aspect ratio above {MAX_ASPECT_RATIO}"));
        }
        Ok(())
    }
}

impl From<&ImageLimits> for Limits {
    fn from(limits: &ImageLimits) -> Self {
        Self { max_side: limits.max_side, max_pixels: limits.max_decoded_pixels }
    }
}
