//! RGB frames cut into rows of numbers, one row a patch.

use super::settings::Settings;
use crate::message::Grid;

pub const CHANNELS: usize = 3;

/// How frames are normalized and cut.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// Side of a patch, in pixels.
    pub patch_size: usize,
    /// Frames of a patch.
    pub temporal_patch_size: usize,
    /// Patches go by squares of this side, those that the model merges; 1: row by row.
    pub merge_size: usize,
    /// By channel, what each of the 256 values of a byte becomes.
    table: Box<[[f32; 256]; CHANNELS]>,
}

/// A frame of RGB bytes [height, width, 3].
#[derive(Clone, Copy)]
pub struct Frame<'a> {
    pub rgb: &'a [u8],
    pub width: usize,
    pub height: usize,
}

impl Cut {
    pub fn new(settings: &Settings, patch_size: usize, temporal_patch_size: usize, merge_size: usize) -> Self {
        // As transformers fuses rescaling and normalizing: (x - mean/factor) / (std/factor), in float32.
        let mean = settings.mean().map(|mean| mean * (1.0 / settings.rescale_factor()));
        let std = settings.std().map(|std| std * (1.0 / settings.rescale_factor()));
        let channel = |c: usize| std::array::from_fn(|value| (value as f32 - mean[c]) / std[c]);
        Self { patch_size, temporal_patch_size, merge_size, table: Box::new(std::array::from_fn(channel)) }
    }

    /// Numbers of one patch: channels × frames × rows × columns.
    pub fn patch_dim(&self) -> usize {
        CHANNELS * self.temporal_patch_size * self.patch_size * self.patch_size
    }

    /// Frames of one size, whose sides are whole merged patches, as [patches, channels × frames × rows × columns].
    /// The last frame is repeated until it fills its patches: a still picture becomes a moment of video.
    pub fn cut(&self, frames: &[Frame<'_>]) -> (Grid, Vec<f32>) {
        let Self { patch_size: patch, merge_size: merge, temporal_patch_size: temporal, .. } = *self;
        let (height, width) = (frames[0].height, frames[0].width);
        let t = frames.len().div_ceil(temporal);
        let grid = Grid { t: t as u32, h: (height / patch) as u32, w: (width / patch) as u32 };
        let mut rows = Vec::with_capacity(grid.num_patches() * self.patch_dim());
        let (blocks_down, blocks_across) = (height / patch / merge, width / patch / merge);
        for moment in 0..t {
            let moment: Vec<Frame<'_>> =
                (0..temporal).map(|index| frames[(moment * temporal + index).min(frames.len() - 1)]).collect();
            for (down, across) in (0..blocks_down).flat_map(|d| (0..blocks_across).map(move |a| (d, a))) {
                for (row, column) in (0..merge).flat_map(|r| (0..merge).map(move |c| (r, c))) {
                    self.push(&moment, (down * merge + row) * patch, (across * merge + column) * patch, &mut rows);
                }
            }
        }
        (grid, rows)
    }

    /// Appends the patch whose corner is at `top`, `left`.
    fn push(&self, moment: &[Frame<'_>], top: usize, left: usize, rows: &mut Vec<f32>) {
        for (channel, table) in self.table.iter().enumerate() {
            for frame in moment {
                for y in top..top + self.patch_size {
                    let line = &frame.rgb[(y * frame.width + left) * CHANNELS..][..self.patch_size * CHANNELS];
                    rows.extend(line.iter().skip(channel).step_by(CHANNELS).map(|&value| table[usize::from(value)]));
                }
            }
        }
    }
}
