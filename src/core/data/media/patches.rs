//! RGB frames cut into rows of numbers, one row a patch.

use super::settings::Settings;
use crate::message::Grid;

pub const CHANNELS: usize = 3;

/// Describes how frames are normalized and cut.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// Side of a patch, in pixels.
    pub patch_size: usize,
    /// Frames of a patch.
    pub temporal_patch_size: usize,
    /// Patches go by squares of this side, those that the model merges; 1: row by row.
    pub merge_size: usize,
    /// True if the channels of a place are side by side within a patch, not planes one after another. Such a patch is of one frame.
    channels_last: bool,
    /// The value that each of the 256 values of a byte becomes, by channel.
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
    /// Prepares a table of the 256 values of each channel, rescaled and normalized in float32 as transformers does it.
    pub fn new(settings: &Settings, patch_size: usize, temporal_patch_size: usize, merge_size: usize) -> Self {
        // As transformers fuses rescaling and normalizing: (x - mean/factor) / (std/factor), in float32.
        let mean = settings.mean().map(|mean| mean * (1.0 / settings.rescale_factor()));
        let std = settings.std().map(|std| std * (1.0 / settings.rescale_factor()));
        let channel = |c: usize| std::array::from_fn(|value| (value as f32 - mean[c]) / std[c]);
        let table = Box::new(std::array::from_fn(channel));
        Self { patch_size, temporal_patch_size, merge_size, channels_last: false, table }
    }

    /// Returns the same with patches of one frame as [rows, columns, channels].
    pub fn with_channels_last(self) -> Self {
        Self { channels_last: true, temporal_patch_size: 1, ..self }
    }

    /// Numbers of one patch: channels × frames × rows × columns.
    pub fn patch_dim(&self) -> usize {
        CHANNELS * self.temporal_patch_size * self.patch_size * self.patch_size
    }

    /// Frames of one size, whose sides are whole merged patches, as [patches, channels × frames × rows × columns], or with
    /// channels last [patches, rows × columns × channels].
    /// The last frame is repeated until it fills its patches: a still picture becomes a moment of video.
    pub fn cut(&self, frames: &[Frame<'_>]) -> (Grid, Vec<f32>) {
        let Self { patch_size: patch, merge_size: merge, temporal_patch_size: temporal, .. } = *self;
        let (height, width) = (frames[0].height, frames[0].width);
        let t = frames.len().div_ceil(temporal);
        let grid = Grid { t: t as u32, h: (height / patch) as u32, w: (width / patch) as u32 };
        let mut rows = Vec::with_capacity(grid.num_cells() * self.patch_dim());
        let mut patch_of = Planes::new(patch, frames.len().min(temporal));
        let (blocks_down, blocks_across) = (height / patch / merge, width / patch / merge);
        for moment in frames.chunks(temporal) {
            for (down, across) in (0..blocks_down).flat_map(|d| (0..blocks_across).map(move |a| (d, a))) {
                for (row, column) in (0..merge).flat_map(|r| (0..merge).map(move |c| (r, c))) {
                    let corner = ((down * merge + row) * patch, (across * merge + column) * patch);
                    for (frame, rgb) in moment.iter().enumerate() {
                        self.split(rgb, corner, patch_of.frame(frame));
                    }
                    match self.channels_last {
                        true => patch_of.write_by_place(&mut rows),
                        false => patch_of.write(moment.len(), temporal, &mut rows),
                    }
                }
            }
        }
        (grid, rows)
    }

    /// Takes the square at `top`, `left` apart into its normalized channels [3, patch, patch].
    fn split(&self, frame: &Frame<'_>, (top, left): (usize, usize), planes: &mut [f32]) {
        let patch = self.patch_size;
        let [red, green, blue] = &*self.table;
        let (reds, rest) = planes.split_at_mut(patch * patch);
        let (greens, blues) = rest.split_at_mut(patch * patch);
        let lines = reds.chunks_exact_mut(patch).zip(greens.chunks_exact_mut(patch)).zip(blues.chunks_exact_mut(patch));
        for (y, ((reds, greens), blues)) in lines.enumerate() {
            let line = &frame.rgb[((top + y) * frame.width + left) * CHANNELS..][..patch * CHANNELS];
            // A table lookup a byte: about as fast as arithmetic on eight at once, and equal to it to the last bit.
            for (((rgb, r), g), b) in line.as_chunks::<CHANNELS>().0.iter().zip(reds).zip(greens).zip(blues) {
                *r = red[usize::from(rgb[0])];
                *g = green[usize::from(rgb[1])];
                *b = blue[usize::from(rgb[2])];
            }
        }
    }
}

/// The frames of one patch, channels apart: small enough to stay in the nearest cache, so that the rows are written once.
struct Planes {
    /// [frames, 3, patch, patch]
    values: Vec<f32>,
    /// Numbers of one channel of one frame.
    plane: usize,
}

impl Planes {
    fn new(patch: usize, num_frames: usize) -> Self {
        let plane = patch * patch;
        Self { values: vec![0.0; num_frames * CHANNELS * plane], plane }
    }

    fn frame(&mut self, index: usize) -> &mut [f32] {
        let len = CHANNELS * self.plane;
        &mut self.values[index * len..][..len]
    }

    /// Appends the first frame as [patch, patch, 3].
    fn write_by_place(&self, rows: &mut Vec<f32>) {
        let [red, green, blue] = std::array::from_fn(|channel| &self.values[channel * self.plane..][..self.plane]);
        rows.extend(red.iter().zip(green).zip(blue).flat_map(|((red, green), blue)| [*red, *green, *blue]));
    }

    /// Appends [3, temporal, patch, patch]; the last of `num_frames` frames is repeated.
    fn write(&self, num_frames: usize, temporal: usize, rows: &mut Vec<f32>) {
        for channel in 0..CHANNELS {
            for frame in 0..temporal {
                let begin = (frame.min(num_frames - 1) * CHANNELS + channel) * self.plane;
                rows.extend_from_slice(&self.values[begin..begin + self.plane]);
            }
        }
    }
}
