//! The sizes of a picture's copy and slices for MiniCPM-V 4.6, computed as in Python: in float64, halves rounded to even numbers.

use crate::data::limits::MAX_ASPECT_RATIO;

/// Sides of what is encoded are multiples of so many patches: the tower and its merger each halve them.
pub const BLOCK: usize = 4;

/// Says how pictures are cut, or frames of videos.
pub struct Plan {
    pub max_slices: usize,
    /// The side of a square with as many pixels as a copy or a slice has.
    pub side: usize,
    /// Side of a patch, in pixels.
    pub patch: usize,
    /// Patches a side that become one feature.
    pub merge: usize,
}

/// Sizes in pixels, as height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub copy: (usize, usize),
    /// Rows and columns of slices and the size of one, where there are any.
    pub slices: Option<([usize; 2], (usize, usize))>,
}

impl Plan {
    /// Returns the multiple of `divisor` that is nearest, to even ones where two are, and one of them at least.
    fn rounded(length: f64, divisor: usize) -> usize {
        ((length / divisor as f64).round_ties_even() as usize * divisor).max(divisor)
    }

    /// Computes height and width as `find_best_resize` of transformers does.
    fn fitted(&self, (mut height, mut width): (f64, f64), enlarges: bool) -> (usize, usize) {
        if enlarges || height * width > (self.side * self.side) as f64 {
            let shape = width / height;
            height = (self.side as f64 / shape.sqrt()).trunc();
            width = (height * shape).trunc();
        }
        let block = self.patch * BLOCK;
        (Self::rounded(height, block), Self::rounded(width, block))
    }

    /// Rows and columns of slices: of the numbers of slices around the picture's area, the grid whose shape is nearest.
    fn grid(&self, width: usize, height: usize) -> Option<[usize; 2]> {
        let shape = (width as f64 / height as f64).ln();
        let ratio = (width * height) as f64 / (self.side * self.side) as f64;
        let multiple = (ratio.ceil() as usize).min(self.max_slices);
        if multiple <= 1 {
            return None;
        }
        let (mut best, mut least) = ([1, 1], f64::INFINITY);
        for num in (multiple - 1..=multiple + 1).filter(|num| *num > 1 && *num <= self.max_slices) {
            for columns in (1..=num).filter(|columns| num % columns == 0) {
                let rows = num / columns;
                let error = (shape - (columns as f64 / rows as f64).ln()).abs();
                if error < least {
                    (best, least) = ([rows, columns], error);
                }
            }
        }
        Some(best)
    }

    /// # Errors
    /// The picture is so long that what is made of it would not fit into memory.
    pub fn sizes(&self, width: usize, height: usize) -> Result<Sizes, String> {
        let (short, long) = (width.min(height).max(1), width.max(height));
        if long as f64 > MAX_ASPECT_RATIO * short as f64 {
            return Err(format!("a picture of {width}×{height} is more than {MAX_ASPECT_RATIO} times as long as wide"));
        }
        let grid = self.grid(width, height);
        let slices = grid.map(|[rows, columns]| {
            let part = |length: usize, parts: usize| Self::rounded(length as f64, parts) as f64 / parts as f64;
            ([rows, columns], self.fitted((part(height, rows), part(width, columns)), true))
        });
        Ok(Sizes { copy: self.fitted((height as f64, width as f64), grid.is_none()), slices })
    }

    /// Returns the number of features of the copy and of all slices.
    pub fn num_features(&self, sizes: Sizes) -> usize {
        let of = |(height, width): (usize, usize)| height * width / (self.patch * self.merge).pow(2);
        of(sizes.copy) + sizes.slices.map_or(0, |([rows, columns], size)| rows * columns * of(size))
    }
}
