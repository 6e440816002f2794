//! Tells whether pictures that a model makes are copies of those that it was trained on.

use image::RgbImage;

/// Training pictures that are looked at, and their bytes: those of large pictures are fewer. Each byte becomes a number of four.
pub const MAX_TRAINED: u64 = 4000;
pub const MAX_BYTES: usize = 64 << 20;

/// Measures how near pictures are to the nearest one that was trained on.
#[derive(Debug, PartialEq)]
pub struct Nearest {
    /// Parts that were compared, of what was made.
    pub count: usize,
    /// The parts that are nearer to a training picture than the median of held-out pictures is.
    pub nearer: usize,
    pub num_trained: usize,
}

impl Nearest {
    /// Compares what was made with pictures that were trained on, and with the true ones, which were not. Wide pictures are
    /// compared in squares, wherever these are in a training picture: a row of known digits is no new picture.
    pub fn of(made: &[&RgbImage], held_out: &[&RgbImage], trained: &[RgbImage]) -> Nearest {
        let known: Vec<Vec<f32>> = trained.iter().flat_map(squares).collect();
        let distance = |square: &Vec<f32>| {
            let of = |other: &Vec<f32>| square.iter().zip(other).map(|(a, b)| (a - b) * (a - b)).sum::<f32>();
            known.iter().filter(|other| other.len() == square.len()).map(of).fold(f32::INFINITY, f32::min)
        };
        let distances = |pictures: &[&RgbImage]| -> Vec<f32> {
            pictures.iter().flat_map(|picture| squares(picture)).map(|square| distance(&square)).collect()
        };
        let (made, mut real) = (distances(made), distances(held_out));
        real.sort_by(f32::total_cmp);
        let median = real.get(real.len() / 2).copied().unwrap_or(0.0);
        let nearer = made.iter().filter(|distance| **distance < median).count();
        Nearest { count: made.len(), nearer, num_trained: trained.len() }
    }

    /// Returns the figure in a sentence.
    pub fn text(&self) -> String {
        let share = 100.0 * self.nearer as f64 / self.count.max(1) as f64;
        format!(
            "{share:.0} % are nearer to one of {} training pictures than half of the true pictures are (at 50 % they are as new as those)",
            self.num_trained
        )
    }
}

/// Returns the squares of a picture as wide as several of them, or the picture.
fn squares(picture: &RgbImage) -> Vec<Vec<f32>> {
    let (width, height) = picture.dimensions();
    let side = if width.is_multiple_of(height.max(1)) { height } else { width };
    let square = |left: u32| {
        let pixels = (0..height).flat_map(|y| (left..left + side).map(move |x| (x, y)));
        pixels.flat_map(|(x, y)| picture.get_pixel(x, y).0.map(f32::from)).collect()
    };
    (0..width).step_by(side.max(1) as usize).map(square).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: &[u8]) -> RgbImage {
        RgbImage::from_raw(values.len() as u32, 1, values.iter().flat_map(|value| [*value; 3]).collect()).unwrap()
    }

    #[test]
    fn copies_are_told_from_new_pictures() {
        let trained = [row(&[10, 20]), row(&[30, 40])];
        // Squares that were trained on, in another order; and squares as far from them as the true ones.
        let (copied, new, real) = (row(&[40, 10]), row(&[13, 27]), row(&[12, 28]));
        let found = Nearest::of(&[&copied, &new], &[&real], &trained);
        assert_eq!(found, Nearest { count: 4, nearer: 2, num_trained: 2 });
        assert!(found.text().contains("50 % are nearer to one of 2 training pictures"));
    }
}
