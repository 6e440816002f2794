//! Pictures as the image tower of a policy takes them: resized into the middle or a corner of a black one, in float32, and cut.

use image::RgbImage;

use super::canvas::{cut, taps};
use super::spec::PolicySpec;
use crate::data::sample::Media;
use crate::message::{Grid, Tower};

const CHANNELS: usize = 3;

/// The item of a picture: patches row by row, `[patches, 3 × patch × patch]`, values from -1 to 1.
pub fn item(picture: &RgbImage, spec: &PolicySpec) -> Media {
    let [rows, columns] = spec.resolution;
    let canvas = fitted(picture, rows, columns, spec.in_corner);
    let [down, across] = spec.grid();
    let grid = Grid { t: 1, h: down as u32, w: across as u32 };
    let (num_features, pixels) = (down * across / spec.merge.pow(2), cut(&canvas, spec.resolution, spec.patch));
    Media { tower: Tower::Vision, grid, num_features, pixels }
}

/// `[3, rows, columns]` of values from -1 to 1: the picture as large as it fits, in the middle or at the bottom right, with black
/// around it. Resized as torch interpolates bilinearly, without smoothing, from values of 0 to 1.
fn fitted(picture: &RgbImage, rows: usize, columns: usize, in_corner: bool) -> Vec<f32> {
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    let ratio = (width as f64 / columns as f64).max(height as f64 / rows as f64);
    // Cut off, as `int` does.
    let (new_height, new_width) = ((height as f64 / ratio) as usize, (width as f64 / ratio) as usize);
    let (new_height, new_width) = (new_height.clamp(1, rows), new_width.clamp(1, columns));
    let (above, beside) = (rows - new_height, columns - new_width);
    let (top, left) = if in_corner { (above, beside) } else { (above / 2, beside / 2) };
    let (down, across) = (taps(height, new_height), taps(width, new_width));
    let bytes = picture.as_raw();
    let mut canvas = vec![-1.0; CHANNELS * rows * columns];
    for (y, &(upper, lower, by)) in down.iter().enumerate() {
        for (x, &(before, behind, bx)) in across.iter().enumerate() {
            for channel in 0..CHANNELS {
                let at =
                    |row: usize, column: usize| f32::from(bytes[(row * width + column) * CHANNELS + channel]) / 255.0;
                let mix = |row: usize| (1.0 - bx) * at(row, before) + bx * at(row, behind);
                let value = (1.0 - by) * mix(upper) + by * mix(lower);
                canvas[(channel * rows + top + y) * columns + left + x] = value.clamp(0.0, 1.0) * 2.0 - 1.0;
            }
        }
    }
    canvas
}
