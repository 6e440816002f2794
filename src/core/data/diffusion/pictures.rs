//! Pictures and clips as a diffusion model takes them: frames of one size, of whole tokens, as numbers from -1 to 1.

use image::RgbImage;

use super::latents::Fit;
use crate::data::media::{middle, resize_bicubic};
use crate::data::sample::Media;
use crate::message::{Grid, Tower};

/// Frames of one size, row by row, three bytes a pixel.
pub struct Frames {
    pub rows: usize,
    pub columns: usize,
    pub rgb: Vec<Vec<u8>>,
}

impl Frames {
    /// Brings the frames of a picture or clip to a size.
    ///
    /// # Errors
    /// The reason: they cannot be resized.
    pub fn fitted(frames: &[RgbImage], fit: Fit) -> Result<Self, String> {
        let (width, height) = fit.resized;
        let fitted = |frame: &RgbImage| {
            let resized = resize_bicubic(frame, width, height)?;
            Ok(if fit.kept == fit.resized { resized.into_owned() } else { middle(&resized, fit.resized, fit.kept) })
        };
        let rgb = frames.iter().map(fitted).collect::<Result<_, String>>()?;
        Ok(Self { rows: fit.kept.1, columns: fit.kept.0, rgb })
    }

    /// Returns a picture whose sides are whole tokens.
    pub fn of_picture(picture: RgbImage) -> Self {
        let (columns, rows) = (picture.width() as usize, picture.height() as usize);
        Self { rows, columns, rgb: vec![picture.into_raw()] }
    }

    /// Frames, rows and columns.
    pub fn sizes(&self) -> [usize; 3] {
        [self.rgb.len(), self.rows, self.columns]
    }

    /// Returns the frame at an index as a picture.
    ///
    /// # Panics
    /// There are fewer.
    pub fn picture(&self, at: usize) -> RgbImage {
        let [rows, columns] = [self.rows, self.columns].map(|side| side as u32);
        RgbImage::from_raw(columns, rows, self.rgb[at].clone()).expect("three bytes a pixel")
    }

    /// Makes the item of the autoencoder, which makes `num_features` tokens of it; `channels` numbers a pixel, 1 is the mean of the
    /// colors.
    pub fn item(&self, channels: usize, num_features: usize) -> Media {
        let pixels = self.rgb.iter().flat_map(|frame| values(frame, channels)).collect();
        self.media(self.rgb.len(), num_features, pixels)
    }

    /// Returns the condition of a clip of so many frames: frames that are given, each with its place, and gray elsewhere.
    pub fn condition<'a>(
        &self,
        num_frames: usize,
        given: impl Iterator<Item = (&'a Vec<u8>, usize)>,
        channels: usize,
        num_features: usize,
    ) -> Media {
        let len = self.rows * self.columns * channels;
        let mut pixels = vec![0.0; num_frames * len];
        for (frame, at) in given {
            values(frame, channels).zip(&mut pixels[at * len..]).for_each(|(value, pixel)| *pixel = value);
        }
        self.media(num_frames, num_features, pixels)
    }

    fn media(&self, num_frames: usize, num_features: usize, pixels: Vec<f32>) -> Media {
        let grid = Grid { t: num_frames as u32, h: self.rows as u32, w: self.columns as u32 };
        Media { tower: Tower::Vae, grid, num_features, pixels }
    }
}

/// Returns the numbers of a frame, from -1 (black) to 1 (white).
fn values(rgb: &[u8], channels: usize) -> impl Iterator<Item = f32> {
    rgb.chunks(3 / channels).map(|group| {
        let sum: u32 = group.iter().map(|&byte| u32::from(byte)).sum();
        sum as f32 / (127.5 * group.len() as f32) - 1.0
    })
}
