//! Pictures as the image tower of a policy takes them: resized into the middle or a corner of a black one, in float32, and cut.

use image::RgbImage;

use super::canvas::{cut, taps};
use crate::data::sample::Media;
use crate::message::{Grid, Tower};

const CHANNELS: usize = 3;

/// The layout of a policy's pictures.
#[derive(Clone, Debug, PartialEq)]
pub struct PictureSpec {
    /// Rows and columns.
    pub resolution: [usize; 2],
    pub patch: usize,
    /// Side of the block of patches that becomes one feature.
    pub merge: usize,
    /// A picture is put into the corner at the bottom right, not into the middle.
    pub in_corner: bool,
}

impl PictureSpec {
    /// Pictures that are not cut into patches.
    pub fn whole(resolution: [usize; 2]) -> Self {
        Self { resolution, patch: 1, merge: 1, in_corner: false }
    }

    /// Patches of a picture, down and across.
    pub fn grid(&self) -> [usize; 2] {
        self.resolution.map(|side| side / self.patch)
    }
}

/// Makes the item of a picture: patches row by row, `[patches, 3 × patch × patch]`, values from -1 to 1.
pub fn item(picture: &RgbImage, spec: &PictureSpec) -> Media {
    let [rows, columns] = spec.resolution;
    let canvas = fitted(picture, rows, columns, spec.in_corner);
    let [down, across] = spec.grid();
    let grid = Grid { t: 1, h: down as u32, w: across as u32 };
    let (num_features, pixels) = (down * across / spec.merge.pow(2), cut(&canvas, spec.resolution, spec.patch));
    Media { tower: Tower::Vision, grid, num_features, pixels }
}

/// Returns `[3, rows, columns]` of values from -1 to 1: the picture as large as it fits, in the middle or at the bottom right, with black
/// around it. Resized as torch interpolates bilinearly, without smoothing, from values of 0 to 1.
fn fitted(picture: &RgbImage, rows: usize, columns: usize, in_corner: bool) -> Vec<f32> {
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    let ratio = (width as f64 / columns as f64).max(height as f64 / rows as f64);
    // Cut off, as `int` does.
    let (new_height, new_width) = ((height as f64 / ratio) as usize, (width as f64 / ratio) as usize);
    let (new_height, new_width) = (new_height.clamp(1, rows), new_width.clamp(1, columns));
    let (above, beside) = (rows - new_height, columns - new_width);
    let (top, left) = if in_corner { (above, beside) } else { (above / 2, beside / 2) };
    let mut canvas = vec![-1.0; CHANNELS * rows * columns];
    let mut lines = Lines::new(picture, new_width);
    for (y, (upper, lower, by)) in taps(height, new_height).into_iter().enumerate() {
        let [upper, lower] = lines.of([upper, lower]);
        for channel in 0..CHANNELS {
            let line = &mut canvas[(channel * rows + top + y) * columns + left..][..new_width];
            let mixed = upper.iter().zip(lower).skip(channel).step_by(CHANNELS);
            for (value, (upper, lower)) in line.iter_mut().zip(mixed) {
                *value = ((1.0 - by) * upper + by * lower).clamp(0.0, 1.0) * 2.0 - 1.0;
            }
        }
    }
    canvas
}

/// The rows of a picture at another width, from 0 to 1. Those of the last two places are held: rows below each other share them.
struct Lines<'a> {
    picture: &'a RgbImage,
    across: Vec<(usize, usize, f32)>,
    /// The table turns a byte into the number that it stands for.
    values: [f32; 256],
    held: [(usize, Vec<f32>); 2],
}

impl<'a> Lines<'a> {
    fn new(picture: &'a RgbImage, new_width: usize) -> Self {
        let values = std::array::from_fn(|byte| byte as f32 / 255.0);
        let held = [(); 2].map(|()| (usize::MAX, Vec::new()));
        Self { picture, across: taps(picture.width() as usize, new_width), values, held }
    }

    /// Returns two rows, `[new_width × 3]` each.
    fn of(&mut self, rows: [usize; 2]) -> [&[f32]; 2] {
        // The lower one of before is the upper one of now.
        if self.held[0].0 != rows[0] {
            self.held.swap(0, 1);
        }
        for (at, row) in rows.into_iter().enumerate() {
            if self.held[at].0 != row {
                let mut line = std::mem::take(&mut self.held[at].1);
                self.fill(row, &mut line);
                self.held[at] = (row, line);
            }
        }
        self.held.each_ref().map(|(_, line)| &line[..])
    }

    fn fill(&self, row: usize, line: &mut Vec<f32>) {
        let width = self.picture.width() as usize * CHANNELS;
        let bytes = &self.picture.as_raw()[row * width..][..width];
        line.clear();
        if self.across.len() * CHANNELS == width {
            return line.extend(bytes.iter().map(|&byte| self.values[usize::from(byte)]));
        }
        for &(before, behind, by) in &self.across {
            let [before, behind] = [before, behind].map(|column| &bytes[column * CHANNELS..][..CHANNELS]);
            let mixed = before.iter().zip(behind).map(|(&before, &behind)| {
                (1.0 - by) * self.values[usize::from(before)] + by * self.values[usize::from(behind)]
            });
            line.extend(mixed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes each value by itself.
    fn expected(picture: &RgbImage, [rows, columns]: [usize; 2], [new_height, new_width]: [usize; 2]) -> Vec<f32> {
        let (width, height) = (picture.width() as usize, picture.height() as usize);
        let (down, across) = (taps(height, new_height), taps(width, new_width));
        let (top, left) = (rows - new_height, columns - new_width);
        let mut canvas = vec![-1.0; CHANNELS * rows * columns];
        for (y, &(upper, lower, by)) in down.iter().enumerate() {
            for (x, &(before, behind, bx)) in across.iter().enumerate() {
                for channel in 0..CHANNELS {
                    let at = |row: usize, column: usize| {
                        f32::from(picture.as_raw()[(row * width + column) * CHANNELS + channel]) / 255.0
                    };
                    let mix = |row: usize| (1.0 - bx) * at(row, before) + bx * at(row, behind);
                    let value = (1.0 - by) * mix(upper) + by * mix(lower);
                    canvas[(channel * rows + top + y) * columns + left + x] = value.clamp(0.0, 1.0) * 2.0 - 1.0;
                }
            }
        }
        canvas
    }

    #[test]
    fn pictures_of_any_size_are_interpolated_to_the_bit() {
        // Smaller, larger, the same, and one that is flat: its rows are each other's.
        for (width, height, new) in [(31, 17, [8, 16]), (5, 9, [16, 8]), (16, 16, [16, 16]), (40, 1, [1, 16])] {
            let byte = |at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8;
            let bytes = (0..width * height * 3).map(byte).collect();
            let picture = RgbImage::from_raw(width, height, bytes).unwrap();
            let found = fitted(&picture, 16, 16, true);
            let expected = expected(&picture, [16, 16], new);
            assert_eq!(found.len(), expected.len());
            for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert_eq!(found.to_bits(), expected.to_bits(), "{width} x {height}: value {at}");
            }
        }
    }
}
