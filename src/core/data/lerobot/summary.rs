//! Statistics of features while a set is written, of an episode and of the whole set.

use image::RgbImage;

use super::running::Running;
use super::stats::FeatureStats;

/// A picture with a longer side is looked at in steps, as lerobot does.
const LARGE: u32 = 300;
/// Pixels of a side that are looked at of a large picture, about.
const LOOKED_AT: u32 = 150;
/// Quantiles by name.
const QUANTILES: [(&str, f64); 5] = [("q01", 0.01), ("q10", 0.1), ("q50", 0.5), ("q90", 0.9), ("q99", 0.99)];

/// Statistics of one feature.
pub enum Summary {
    Numbers(Running),
    Pictures(Shades),
}

/// The counts of the 256 values of a byte, by channel.
pub struct Shades {
    counts: Box<[[u64; 256]; 3]>,
    num_pictures: u64,
}

impl Summary {
    /// Begins the statistics of vectors of `width` numbers.
    pub fn of_numbers(width: usize) -> Self {
        Self::Numbers(Running::new(width))
    }

    /// Begins the statistics of pictures, by channel.
    pub fn of_pictures() -> Self {
        Self::Pictures(Shades { counts: Box::new([[0; 256]; 3]), num_pictures: 0 })
    }

    /// Adds vectors one after the other.
    pub fn add_numbers<T: Copy + Into<f64>>(&mut self, vectors: &[T]) {
        if let Self::Numbers(running) = self {
            running.add(vectors);
        }
    }

    /// Adds what was counted of pictures.
    pub fn join(&mut self, other: &Self) {
        if let (Self::Pictures(all), Self::Pictures(more)) = (self, other) {
            for (counts, more) in all.counts.iter_mut().zip(more.counts.iter()) {
                counts.iter_mut().zip(more).for_each(|(count, more)| *count += more);
            }
            all.num_pictures += more.num_pictures;
        }
    }

    /// Adds a picture, of a large one every few pixels as lerobot does; nothing happens to statistics of numbers.
    pub fn add_picture(&mut self, picture: &RgbImage) {
        let Self::Pictures(shades) = self else { return };
        shades.num_pictures += 1;
        let (width, height) = picture.dimensions();
        let step = if width.max(height) < LARGE { 1 } else { (width.max(height) / LOOKED_AT).max(1) };
        for row in picture.rows().step_by(step as usize) {
            for pixel in row.step_by(step as usize) {
                for (channel, &value) in pixel.0.iter().enumerate() {
                    shades.counts[channel][usize::from(value)] += 1;
                }
            }
        }
    }

    /// Returns the statistics; those of pictures are of values from 0 to 1. `None`: there was nothing.
    pub fn finish(&self) -> Option<FeatureStats> {
        match self {
            Self::Numbers(running) => running.finish(),
            Self::Pictures(shades) => shades.finish(),
        }
    }
}

impl Shades {
    fn finish(&self) -> Option<FeatureStats> {
        if self.num_pictures == 0 {
            return None;
        }
        let of =
            |value: &dyn Fn(&[u64; 256]) -> f64| self.counts.iter().map(|it| value(it) / 255.0).collect::<Vec<_>>();
        let first = |counts: &[u64; 256]| counts.iter().position(|&count| count > 0).unwrap_or_default() as f64;
        let last = |counts: &[u64; 256]| counts.iter().rposition(|&count| count > 0).unwrap_or_default() as f64;
        let deviation = |counts: &[u64; 256]| {
            let mean = mean(counts);
            let spread =
                counts.iter().zip(0u32..).map(|(&count, value)| count as f64 * (f64::from(value) - mean).powi(2));
            (spread.sum::<f64>() / total(counts)).sqrt()
        };
        let mut stats = FeatureStats::from([
            ("min".to_owned(), of(&first)),
            ("max".to_owned(), of(&last)),
            ("mean".to_owned(), of(&mean)),
            ("std".to_owned(), of(&deviation)),
            ("count".to_owned(), vec![self.num_pictures as f64]),
        ]);
        for (name, part) in QUANTILES {
            stats.insert(name.to_owned(), of(&|counts| quantile(counts, part)));
        }
        Some(stats)
    }
}

fn total(counts: &[u64; 256]) -> f64 {
    counts.iter().sum::<u64>() as f64
}

fn mean(counts: &[u64; 256]) -> f64 {
    counts.iter().zip(0u32..).map(|(&count, value)| count as f64 * f64::from(value)).sum::<f64>() / total(counts)
}

/// Returns the smallest value that at least this part does not exceed.
fn quantile(counts: &[u64; 256], part: f64) -> f64 {
    let (wanted, mut seen) = (part * total(counts), 0.0);
    for (value, &count) in counts.iter().enumerate() {
        seen += count as f64;
        if count > 0 && seen >= wanted {
            return value as f64;
        }
    }
    255.0
}
